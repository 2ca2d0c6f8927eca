"""Passes the messages of one subscription to a stream that can move to another node.

While the stream moves, two nodes are subscribed: `liftlog.cluster.handover` decides which of the
two nodes stores which messages. This module passes the messages to the new leader as runs.
"""

from __future__ import annotations

from collections.abc import Callable

from liftlog.cluster.handover import Giver, Taker, digests_of
from liftlog.sequencing.run import MessageRun
from liftlog.server.ingest.overlap import select
from liftlog.server.ingest.subscriptions import RunHandler


class Relay:
    """Receives the messages of one subscription. Belongs to the event loop.

    `receive` is the handler of the subscription until the subscription ends. The relay drops the
    messages if there is neither `deliver` nor a taker. `now` returns monotonic seconds.
    """

    def __init__(self, now: Callable[[], float], deliver: RunHandler | None = None) -> None:
        self.giver: Giver | None = None
        """The giver's side of the handover while the stream moves to another node; otherwise
        None."""
        self.taker: Taker[MessageRun] | None = None
        """The taker's side of the handover while the stream moves to this node, and for a short
        time after that; otherwise None."""
        self._now = now
        self._deliver = deliver

    def receive(self, run: MessageRun) -> None:
        giver, taker = self.giver, self.taker
        if giver is not None and giver.is_noting:
            giver.received(_digests(giver.offer.key, run))
        if taker is not None:
            self._receive_early(taker, run)
        elif self._deliver is not None:
            self._deliver(run)

    def _receive_early(self, taker: Taker[MessageRun], run: MessageRun) -> None:
        now = self._now()
        compares = taker.wants_digests(now)
        digests = _digests(taker.offer.key, run) if compares else ()
        rows = taker.arrived(run, len(run), digests, run.memory_bytes, now)
        if rows and self._deliver is not None:
            self._deliver(select(run, rows))
        if taker.leads and not compares:
            self.taker = None  # no more copies are expected

    def take(self, log_end: int, deliver: RunHandler) -> bool:
        """Deliver the held messages and all later messages, because this node now leads the stream.
        The node's log ends at `log_end`. Returns False, and delivers nothing, if the held messages
        cannot be used."""
        held = None if self.taker is None else self.taker.take(log_end, self._now())
        if held is None:
            return False
        self._deliver = deliver
        for run, rows in held:
            deliver(select(run, rows))
        return True


def _digests(key: bytes, run: MessageRun) -> list[bytes]:
    headers = run.headers if run.headers is not None else [b""] * len(run)
    return digests_of(key, run.subjects, run.replies, headers, run.payloads)
