"""Liveness and readiness of the daemon, with the reasons.

"Not ready" means that clients should not be sent here. A failed stream is only a warning, since the
other streams are served.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from liftlog import __version__
from liftlog.server.checkpoints import OFFSETS_STREAM
from liftlog.server.ingest.nats_link import NatsLink
from liftlog.server.jetstream_api.service import JetStreamApi
from liftlog.server.life.reloading import Reloads
from liftlog.server.streams.broker import Broker
from liftlog.server.streams.replicated import ReplicatedStreams
from liftlog.server.vitals.disk import DiskProbe

STALLED_SECONDS = 10.0
"""A commit that takes longer means that the disk has stalled."""
_MAX_NAMED = 20
_ACK_REFUSED_SECONDS = 300.0
"""For so long, an ack that NATS refused is reported."""


class Phase(Enum):
    """The phases of the daemon's life, in order."""

    RECOVERING = "recovering"
    SERVING = "serving"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Check:
    """One condition of readiness."""

    ok: bool
    detail: str


class Health:
    """Asked by the HTTP port. Belongs to the event loop."""

    def __init__(
        self,
        broker: Broker,
        link: NatsLink,
        disk: DiskProbe,
        reloads: Reloads,
        loop_lag_seconds: Callable[[], float],
        *,
        ready_after_seconds: float = 0.0,
    ) -> None:
        """After a start, replicas that are not in sync are waited for, until `ready_after_seconds`
        have passed."""
        self.phase = Phase.RECOVERING
        self.jetstream_api: JetStreamApi | None = None
        """Set if the daemon is to answer JetStream's clients."""
        self._broker = broker
        self._link = link
        self._disk = disk
        self._reloads = reloads
        self._loop_lag_seconds = loop_lag_seconds
        self._started = time.monotonic()
        self._ready_after_seconds = ready_after_seconds
        self._has_caught_up = False

    @property
    def is_serving(self) -> bool:
        """Whether the streams are open."""
        return self.phase is not Phase.RECOVERING

    def liveness(self) -> dict[str, Any]:
        """That there is an answer at all shows that the event loop runs."""
        return {
            "status": "ok",
            "phase": self.phase.value,
            "version": __version__,
            "uptime_seconds": round(time.monotonic() - self._started, 3),
            "event_loop_lag_seconds": round(self._loop_lag_seconds(), 6),
        }

    async def readiness(self) -> tuple[bool, dict[str, Any]]:
        """Whether the daemon is ready, and the body of the answer."""
        checks = {
            "recovery": self._recovery(),
            "nats": self._nats(),
            "streams": self._streams(),
            "disk": await self._writable(),
            "draining": self._draining(),
        }
        if self._broker.replicated is not None:
            checks["cluster"] = self._cluster(self._broker.replicated)
        problems = {name: check.detail for name, check in checks.items() if not check.ok}
        if "recovery" in problems:
            problems.pop("nats", None)  # no attempt was made yet
            problems.pop("cluster", None)
        if "recovery" in problems or "nats" in problems:
            problems.pop("streams", None)  # a consequence of the above
        return not problems, {
            "status": "not ready" if problems else "ok",
            "problems": problems,
            "warnings": self.warnings(),
            "checks": {name: asdict(check) for name, check in checks.items()},
        }

    def _recovery(self) -> Check:
        count = sum(not name.startswith("_") for name in self._broker.hosts)
        opened = "1 stream is open" if count == 1 else f"{count} streams are open"
        if self.phase is Phase.RECOVERING:
            return Check(False, f"recovering, {opened}")
        return Check(True, opened)

    def _nats(self) -> Check:
        if not self._link.connected:
            return Check(False, f"not connected to NATS: {self._link.problem}")
        return Check(True, f"connected to NATS {self._link.server_version}".rstrip())

    def _streams(self) -> Check:
        if self.phase is not Phase.RECOVERING and self._broker.nats_problem:
            return Check(False, self._broker.nats_problem)
        if self.phase is Phase.RECOVERING or not self._broker.attached:
            return Check(False, "subscriptions are not yet confirmed by NATS")
        if any(not one.is_required for one in self._broker.refused_subjects()):
            return Check(True, "NATS has confirmed every subscription that is needed")
        return Check(True, "NATS has confirmed every subscription")

    async def _writable(self) -> Check:
        stalled = self._broker.stalled_streams(STALLED_SECONDS)
        if stalled:
            return Check(False, f"a commit waits for the disk: {_named(stalled)}")
        state = await self._disk.state()
        if state.problem:
            return Check(False, state.problem)
        free, size = (f"{number / 2**30:,.1f}" for number in (state.free_bytes, state.size_bytes))
        return Check(True, f"writable, {free} of {size} GiB are free")

    def _cluster(self, streams: ReplicatedStreams) -> Check:
        now, session = time.monotonic(), streams.session
        if session is None or now >= session.deadline:
            return Check(False, "the metadata store does not renew this node's session")
        if not self._has_caught_up and self.phase is not Phase.RECOVERING:
            behind = streams.not_in_sync()
            if behind and now - self._started < self._ready_after_seconds:
                return Check(False, f"replicas here are not in sync yet: {_named(behind)}")
            self._has_caught_up = True
        return Check(True, f"node {streams.member.name} has a session")

    def _draining(self) -> Check:
        if self.phase is Phase.DRAINING:
            return Check(False, "the daemon is stopping")
        return Check(True, "not stopping")

    def _has_checkpoints(self) -> bool:
        """Whether any node answers for them: the others pass on what they are asked."""
        streams = self._broker.replicated
        if streams is None or self._broker.has_checkpoints:
            return self._broker.has_checkpoints
        record = streams.known(OFFSETS_STREAM)
        return record is not None and record.leader not in (None, streams.member.name)

    def warnings(self) -> dict[str, str]:
        """Problems that need attention although clients are served."""
        found = {}
        if self.is_serving and not self._has_checkpoints():
            found["checkpoints"] = "consumers cannot store checkpoints; the log has the reason"
        found |= self._broker.troubles()
        found |= self._nats_warnings()
        if self._reloads.problems:
            found["reload"] = "; ".join(
                f"{part} was not reloaded: {problem}"
                for part, problem in self._reloads.problems.items()
            )
        if self._reloads.restart_needed:
            found["restart"] = f"changed since the start: {_named(self._reloads.restart_needed)}"
        return found

    def _nats_warnings(self) -> dict[str, str]:
        found = {}
        refused = [one for one in self._broker.refused_subjects() if not one.is_required]
        if refused and self._link.connected:
            found["nats_refused"] = (
                "; ".join(f"NATS refuses {one.subject}: {one.problem}" for one in refused)
                + "; consumers cannot store checkpoints over NATS (checkpoints.over_nats)"
            )
        ack = self._link.refused_ack
        if ack is not None and time.monotonic() - ack.at < _ACK_REFUSED_SECONDS:
            found["acks_refused"] = (
                f"NATS has refused {self._link.counters.acks_refused} acks, the last to "
                f"{ack.subject or 'an unknown subject'}: {ack.text}"
            )
        if rivals := self._broker.jetstream_rivals():
            found["jetstream"] = f"JetStream acks the same messages as {_named(rivals)}"
        api = self.jetstream_api
        if api is not None and api.problem and self._link.connected:
            found["jetstream_api"] = f"JetStream's clients get no answer: {api.problem}"
        if self._link.is_lame_duck:
            found["lame_duck"] = (
                "the NATS server is about to stop, and no other server was found yet"
            )
        return found


def _named(names: list[str]) -> str:
    shown = ", ".join(sorted(names)[:_MAX_NAMED])
    return shown if len(names) <= _MAX_NAMED else f"{shown} and {len(names) - _MAX_NAMED} more"
