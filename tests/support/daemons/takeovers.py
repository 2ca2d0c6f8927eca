"""Measures the steps of a takeover while a stream has no leader, from the logs of the nodes of a
`Cluster`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from datetime import datetime

from support.clients.ingesting import until
from support.daemons.cluster import PATIENCE, Cluster, TimedPublisher

STEPS = ("peer-lost", "elected", "leading", "acked")


class Takeover:
    """A takeover after a fault of the node that leads `stream`.

    Only the logs are read. A request to a node would cost the node that takes over a part of the
    measured time.
    """

    def __init__(self, cluster: Cluster, stream: str) -> None:
        self._stream = stream
        self._logs = {
            name: (daemon.log_path, daemon.log_path.stat().st_size)
            for name, daemon in cluster.nodes.items()
        }
        self._began = time.time()

    def wait(self) -> None:
        """Wait until another node leads."""
        until(lambda: "leading" in self._seen(), PATIENCE, f"another node leads {self._stream}")

    def steps(self, publishers: Iterable[TimedPublisher]) -> dict[str, float]:
        """Return the seconds from the fault to each of STEPS that was logged. Call it when messages
        are acked again."""
        seen = {step: at - self._began for step, at in self._seen().items()}
        since = time.monotonic() - (time.time() - self._began)
        acks = (at - since for one in publishers for at in one.acked_at.copy().values())
        return seen | {"acked": min((at for at in acks if at > seen["leading"]), default=PATIENCE)}

    def _seen(self) -> dict[str, float]:
        """Return the first time of each step, except the last one."""
        found: dict[str, float] = {}
        for path, start in self._logs.values():
            with path.open("rb") as log:
                log.seek(start)
                whole_lines = log.read().rpartition(b"\n")[0].splitlines()
            for line in whole_lines:
                event = _event_of(line)
                if (
                    event.get("event") in STEPS
                    and event.get("stream", self._stream) == self._stream
                ):
                    at = datetime.fromisoformat(event["time"]).timestamp()
                    found[event["event"]] = min(at, found.get(event["event"], at))
        return found


def _event_of(line: bytes) -> dict[str, str]:
    """Parse a line. A killed node may leave half a line."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def parts(takeovers: Iterable[dict[str, float]]) -> str:
    """Return the median time of each step since the step before it."""
    found: dict[str, list[float]] = {}
    for seen in takeovers:
        before = 0.0
        for step in STEPS:
            if step in seen:
                found.setdefault(step, []).append(seen[step] - before)
                before = seen[step]
    medians = {step: sorted(times)[len(times) // 2] for step, times in found.items()}
    return ", ".join(f"{step} +{medians[step]:.2f}" for step in STEPS if step in medians)
