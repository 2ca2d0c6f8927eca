"""Shows one stream: its bounds, files, settings, consumers and problems."""

from __future__ import annotations

from typing import Any

from liftlog.errors import (
    CheckpointUncertain,
    Diverged,
    LiftlogError,
    NotLeader,
    OffsetOutOfRange,
    StaleIncarnation,
    StreamUnavailable,
)
from liftlog.log import Log
from liftlog.log.segment.segment import Segment
from liftlog.protocol.administration import LeasesAnswer, ListLeases
from liftlog.protocol.checkpoints import CheckpointsAnswer, ListCheckpoints
from liftlog.server.node.cluster_catalog import needed_node_of
from liftlog.server.web.actions import DONE
from liftlog.server.web.asking import Asked, Shown
from liftlog.server.web.formats import damage_marks, places, segment_parts
from liftlog.server.web.pages.cluster import replication_of, without_lags
from liftlog.server.web.pages.workers import workers_of

MAX_SEGMENTS = 1000
"""Maximum number of segments shown. The newest segments are shown."""
MAX_CONSUMERS = 1000
_MAX_TOLD = 100
_MAX_MARKS = 500


async def stream(asked: Asked) -> Shown:
    name = asked.authorize("read")
    parts = asked.parts
    described = await asked.describe()
    consumers, more_consumers = await _consumers(asked, name)
    leases = await _leases(asked, name)
    workers = await workers_of(asked, name)
    segments, problem = _segments(asked, name)
    rate = parts.history.rate(name)
    asked.authorize("read")  # checked again after the awaits
    data: dict[str, Any] = {
        **described.to_wire(),
        "records": described.records,
        "rate": rate.records,
        "received_bytes_rate": rate.received_bytes,
        "history": rate.history,
        "segments": segments,
        "compaction_history": _history(asked, name),
        "consumers": consumers,
        "more_consumers": more_consumers,
        "may_move": asked.may("commit", name),
        "leases": leases,
        **workers,
        "may_erase": asked.may("erase", name) and not name.startswith("_"),
        "may_administer": asked.may("admin", name) and not name.startswith("_"),
        "replication": replication_of(asked, name),
        "problem": problem,
    }
    data["elsewhere"] = bool(problem) and _is_elsewhere(asked, data["replication"])
    data["possible_losses"] = data["possible_losses"][-_MAX_TOLD:][::-1]
    data["shape"] = [
        described.state,
        described.compaction.get("state"),
        described.compaction.get("passes"),
        (described.compaction.get("reason") or "").partition(",")[0],
        [one["file"] for one in segments[:-1]],
        [one["consumer"] for one in consumers],
        len(described.quarantined),
        len(data["leases"]),
        [[one["name"], one["state"]] for one in data["workers"]],
        data["workers_problem"],
        without_lags(data["replication"] or {}),
    ]
    damaged = data["quarantined"]
    drawn = segment_parts(_undamaged(segments, damaged))
    stands = [None if one["problem"] else one["offset"] for one in consumers]
    for one, place in zip(consumers, places(drawn, stands), strict=True):
        one["place"] = place
    done = DONE.get(asked.request.query.get("done", ""), "")
    return Shown(
        name,
        data,
        {
            "parts": drawn,
            "marks": damage_marks(drawn, damaged[:_MAX_MARKS]),
            "damaged_offsets": sum(one["next_offset"] - one["first_offset"] for one in damaged),
            "settings": _settings(described.settings),
            "done": done,
            "problems": PROBLEMS,
        },
    )


PROBLEMS = {
    OffsetOutOfRange.name: "the next records are gone",
    StaleIncarnation.name: "from an earlier stream of this name",
    Diverged.name: "from a different history",
    CheckpointUncertain.name: "unknown",
}
"""Reasons why a consumer cannot continue at its checkpoint. Other errors are shown by name."""


def _segments(asked: Asked, name: str) -> tuple[list[dict[str, Any]], str]:
    try:
        log = asked.parts.broker.readable_stream(name).log
    except (StreamUnavailable, NotLeader) as error:
        return [], error.message
    damaged = log.view.damaged_files
    return [
        {
            "file": one.path.name,
            "kind": _kind(log, one, damaged),
            "base_offset": one.base_offset,
            "next_offset": one.next_offset,
            "size_bytes": one.size_bytes,
            "records": one.record_count,
            "generation": one.generation,
            "newest_ns": one.max_timestamp_ns,
        }
        for one in log.segments[-MAX_SEGMENTS:]
    ], ""


def _is_elsewhere(asked: Asked, replication: dict[str, Any] | None) -> bool:
    """Return True if only other nodes have a copy of the stream."""
    if replication is None or not replication["leader"]:
        return False
    return needed_node_of(asked.parts.broker).member.name not in replication["replicas"]


def _undamaged(
    segments: list[dict[str, Any]], damaged: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the segments with corrected kinds. If the damaged ranges of a segment are known, it is
    shown as undamaged, and the picture marks the ranges. If they are unknown, the segment is shown
    as damaged."""
    files = {one["segment"] for one in damaged}
    return [
        {**one, "kind": "active" if one is segments[-1] else "sealed"}
        if one["kind"] == "damaged" and one["file"] in files
        else one
        for one in segments
    ]


def _kind(log: Log, segment: Segment, damaged: frozenset[str]) -> str:
    if segment.path.name in damaged:
        return "damaged"
    if not segment.sealed:
        return "active"
    return "compacted" if segment.next_offset <= log.view.manifest.cleaned_below else "sealed"


def _history(asked: Asked, name: str) -> list[dict[str, Any]]:
    try:
        return asked.parts.broker.compaction_history(name)
    except LiftlogError:  # the stream could not be opened, so it was not compacted
        return []


async def _leases(asked: Asked, name: str) -> list[dict[str, Any]]:
    try:
        found = await asked.carry_out(ListLeases(name))
    except LiftlogError:
        return []
    assert isinstance(found, LeasesAnswer), "the answer to leases"
    return [{**lease, "lease_id": ""} for lease in found.leases]


async def _consumers(asked: Asked, name: str) -> tuple[list[dict[str, Any]], bool]:
    """Return the consumers with their checkpoints and lags, and True if there are more of them."""
    found: list[dict[str, Any]] = []
    after: str | None = None
    try:
        while True:
            page = await asked.carry_out(ListCheckpoints(stream=name, after=after))
            assert isinstance(page, CheckpointsAnswer), "the answer to checkpoints"
            found += page.checkpoints
            after = page.after
            if after is None or len(found) >= MAX_CONSUMERS:
                break
    except (StreamUnavailable, NotLeader):
        return [], False
    more = after is not None or len(found) > MAX_CONSUMERS
    found = found[:MAX_CONSUMERS]
    found.sort(key=lambda one: (-(one["lag"] or 0), one["consumer"]))
    return found, more


def _settings(tree: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return the settings as a flat list; nested settings are named `group.name`."""
    found: list[tuple[str, str]] = []
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            found += _settings(value, f"{prefix}{key}.")
        else:
            found.append((prefix + key, _worded(value)))
    return found


def _worded(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "none" if value is None else str(value)
