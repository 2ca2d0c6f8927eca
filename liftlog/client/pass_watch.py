"""Waiting for a compaction pass that was asked for. Without sockets, for both clients."""

from __future__ import annotations

from liftlog.errors import StreamUnavailable
from liftlog.protocol.stream_info import StreamInfo

_FIRST_LOOK_SECONDS = 0.05
_LAST_LOOK_SECONDS = 1.0


class PassWatch:
    """Whether the pass that `asked` answered to is over, judged from later descriptions."""

    def __init__(self, asked: StreamInfo) -> None:
        self._incarnation = asked.incarnation
        self._wanted = int(asked.compaction.get("requested", 0))
        self.seconds = _FIRST_LOOK_SECONDS
        """How long to wait before the next look."""

    def is_over(self, info: StreamInfo) -> bool:
        """Raises StreamUnavailable when it will not come, or failed."""
        self.seconds = min(self.seconds * 2, _LAST_LOOK_SECONDS)
        compaction = info.compaction
        if int(compaction.get("finished", 0)) >= self._wanted:
            return True
        lost = int(compaction.get("requested", 0)) < self._wanted
        if lost or info.incarnation != self._incarnation:
            raise StreamUnavailable(
                f"the daemon no longer knows of the pass over {info.name}", hint="ask again"
            )
        if compaction.get("state") == "backing off":
            raise StreamUnavailable(
                f"the pass over {info.name} failed: {compaction.get('error', '')}",
                hint="the daemon tries again by itself",
            )
        return False
