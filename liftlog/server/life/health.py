"""Liveness and readiness of the daemon, with the reasons.

If one of the daemon's conditions is `unready`, the daemon is not ready, and a load balancer should
send no clients to it. This module produces the conditions of the daemon itself;
`liftlog.server.streams.description` produces the conditions of streams.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from liftlog import __version__
from liftlog.commit import commit
from liftlog.server.checkpoints import OFFSETS_STREAM
from liftlog.server.ingest.nats_link import NatsLink
from liftlog.server.life.reloading import Reloads
from liftlog.server.node.cluster_catalog import node_of
from liftlog.server.node.replicated import ReplicatedStreams
from liftlog.server.streams.broker import Broker
from liftlog.server.vitals.conditions import Condition, MayRead, by_kind, first_of_each_kind
from liftlog.server.vitals.disk import DiskProbe

if TYPE_CHECKING:
    from liftlog.server.jetstream_api.service import JetStreamApi

STALLED_SECONDS = 10.0
"""A commit that takes longer than this time (in seconds) counts as a stalled disk."""
_API_SECONDS = 10.0
"""Maximum time, in seconds, for which JetStream's API makes the daemon not ready."""
_ACK_REFUSED_SECONDS = 300.0
"""Time, in seconds, for which the daemon reports an ack that NATS refused."""


class Phase(Enum):
    """The phases of a daemon's run, in their order."""

    RECOVERING = "recovering"
    SERVING = "serving"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Check:
    """One condition of readiness."""

    ok: bool
    detail: str
    streams: Iterable[str] = ()
    """The streams that the detail describes."""


class Health:
    """Computes the daemon's own conditions and adds the conditions of the broker. The HTTP port
    calls it. Belongs to the event loop."""

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
        """After a start, the daemon reports ready when its replicas are in sync, or when
        `ready_after_seconds` have passed."""
        self.phase = Phase.RECOVERING
        self.jetstream_api: JetStreamApi | None = None
        """The part that answers JetStream's clients; None if the daemon does not answer them."""
        self._broker = broker
        self._link = link
        self._disk = disk
        self._reloads = reloads
        self._loop_lag_seconds = loop_lag_seconds
        self._started = time.monotonic()
        self._ready_after_seconds = ready_after_seconds
        self._has_caught_up = False
        self._waits_since: float | None = None
        """The time since which the daemon waits only for JetStream's API to be ready; None if it
        does not wait."""
        broker.conditions.add(self._found, refresh=disk.state)

    @property
    def is_serving(self) -> bool:
        """True if the streams are open."""
        return self.phase is not Phase.RECOVERING

    def liveness(self) -> dict[str, Any]:
        """Return the body of `/livez`. Every answer shows that the event loop runs."""
        return {
            "status": "ok",
            "phase": self.phase.value,
            "version": __version__,
            "commit": commit(),
            "uptime_seconds": round(time.monotonic() - self._started, 3),
            "event_loop_lag_seconds": round(self._loop_lag_seconds(), 6),
        }

    async def readiness(self, may_read: MayRead | None = None) -> tuple[bool, dict[str, Any]]:
        """Return True if the daemon is ready, and the body of `/readyz`."""
        found = await self._broker.conditions.now(may_read)
        problems = by_kind(one for one in found if one.is_unready)
        checks = {name: _shown(name, check, may_read) for name, check in self._checks().items()}
        return not problems, {
            "status": "not ready" if problems else "ok",
            "problems": problems,
            "warnings": by_kind(one for one in found if not one.is_unready),
            "conditions": [one.to_wire() for one in first_of_each_kind(found)],
            "checks": checks,
        }

    def _checks(self) -> dict[str, Check]:
        checks = {
            "recovery": self._recovery(),
            "nats": self._nats(),
            "streams": self._streams(),
            "disk": self._writable(),
            "draining": self._draining(),
        }
        node = node_of(self._broker)
        if node is not None:
            checks["cluster"] = self._cluster(node)
        return checks

    # --- conditions ---

    def _found(self) -> Iterator[Condition]:
        checks = {name: check for name, check in self._checks().items() if not check.ok}
        if "recovery" in checks:
            checks.pop("nats", None)  # no attempt has been made yet
            checks.pop("cluster", None)
        if "recovery" in checks or "nats" in checks:
            checks.pop("streams", None)  # a consequence of these conditions
        for name, check in checks.items():
            yield Condition.of(name, check.detail, streams=check.streams)
        if self.is_serving and not self._has_checkpoints():
            text = "consumers cannot store checkpoints; the log has the reason"
            yield Condition.of("checkpoints", text)
        if newer := self._newer_records():
            yield Condition.of("newer_records", newer)
        yield from self._nats_conditions()
        if self._reloads.problems:
            yield Condition.of(
                "reload",
                "; ".join(
                    f"{part} was not reloaded: {problem}"
                    for part, problem in self._reloads.problems.items()
                ),
            )
        if self._reloads.restart_needed:
            changed = ", ".join(sorted(self._reloads.restart_needed))
            yield Condition.of("restart", f"changed since the start: {changed}")

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
        if self._link.connected and self._waits_for_api():
            return Check(False, "JetStream's API has not started yet")
        if any(not one.is_required for one in self._broker.refused_subjects()):
            return Check(True, "NATS has confirmed every subscription that is needed")
        return Check(True, "NATS has confirmed every subscription")

    def _waits_for_api(self) -> bool:
        """Return True until JetStream's API has decided whether it answers requests. The result is
        True only for a limited time, because the API never decides if NATS refuses its
        connection."""
        api = self.jetstream_api
        if not self._broker.settings.nats.jetstream_api or (api and not api.is_deciding):
            return False
        now = time.monotonic()
        if self._waits_since is None:
            self._waits_since = now
        return now - self._waits_since < _API_SECONDS

    def _writable(self) -> Check:
        stalled = self._broker.stalled_streams(STALLED_SECONDS)
        if stalled:
            return Check(False, "a commit waits for the disk", stalled)
        state = self._disk.last
        if state.problem:
            return Check(False, state.problem)
        free, size = (f"{number / 2**30:,.1f}" for number in (state.free_bytes, state.size_bytes))
        return Check(True, f"writable, {free} of {size} GiB are free")

    def _cluster(self, streams: ReplicatedStreams) -> Check:
        now, session = time.monotonic(), streams.session
        if session is None or now >= session.deadline:
            problem = streams.store_problem()
            return Check(False, problem or "the metadata store does not renew this node's session")
        if not self._has_caught_up and self.phase is not Phase.RECOVERING:
            behind = streams.not_in_sync()
            if behind and now - self._started < self._ready_after_seconds:
                return Check(False, "replicas here are not in sync yet", behind)
            self._has_caught_up = True
        return Check(True, f"node {streams.member.name} has a session")

    def _draining(self) -> Check:
        if self.phase is Phase.DRAINING:
            return Check(False, "the daemon is stopping")
        return Check(True, "not stopping")

    def _newer_records(self) -> str:
        """Return a description of the checkpoints that a newer version has written and this daemon
        cannot read."""
        return self._broker.checkpoints.newer if self._broker.has_checkpoints else ""

    def _has_checkpoints(self) -> bool:
        """Return True if a node answers requests about checkpoints. All other nodes forward such
        requests to it."""
        return self._broker.has_checkpoints or self._broker.catalog.leads_elsewhere(OFFSETS_STREAM)

    def _nats_conditions(self) -> Iterator[Condition]:
        refused = [one for one in self._broker.refused_subjects() if not one.is_required]
        if refused and self._link.connected:
            yield Condition.of(
                "nats_refused",
                "; ".join(f"NATS refuses {one.subject}: {one.problem}" for one in refused)
                + "; consumers cannot store checkpoints over NATS (checkpoints.over_nats)",
            )
        ack = self._link.refused_acks.last
        if ack is not None and time.monotonic() - ack.at < _ACK_REFUSED_SECONDS:
            yield Condition.of(
                "acks_refused",
                f"NATS has refused {self._link.counters.acks_refused} acks, the last to "
                f"{ack.subject or 'an unknown subject'}: {ack.text}",
            )
        api = self.jetstream_api
        if api is not None and api.problem and self._link.connected:
            yield Condition.of("jetstream_api", f"JetStream's clients get no answer: {api.problem}")
        if api is not None and (refused_acks := api.worker_problems):
            text = "; ".join(dict.fromkeys(refused_acks.values()))
            yield Condition.of("worker_acks", text, streams=tuple(refused_acks))
        if self._link.is_lame_duck:
            text = "the NATS server is about to stop, and no other server was found yet"
            yield Condition.of("lame_duck", text)


def _shown(name: str, check: Check, may_read: MayRead | None) -> dict[str, Any]:
    if check.ok:
        return {"ok": True, "detail": check.detail}
    condition = Condition.of(name, check.detail, streams=check.streams)
    if may_read is not None:
        condition = condition.shown_to(may_read) or condition
    return {"ok": False, "detail": condition.words}
