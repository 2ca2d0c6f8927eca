"""Shows the daemon as a whole: its health, and the streams that the viewer may read, a page at a
time."""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import urlencode

from liftlog.protocol.messages import StreamInfo
from liftlog.server.web.asking import Asked, Shown
from liftlog.server.web.history import Rate
from liftlog.server.web.pages.cluster import leader_of

PER_PAGE = 50
_MAX_DAMAGED = 100
"""Maximum number of streams that the page of health names."""
ONLY = ("", "problems")
SORTS = ("name", "rate", "records", "size", "state")


async def overview(asked: Asked) -> Shown:
    parts = asked.parts
    wanted, sort = asked.text("q"), asked.choice("sort", SORTS)
    only = asked.choice("only", ONLY)
    number = max(1, asked.number("page", 1, 10**6))
    names = [name for name in parts.broker.stream_names() if asked.may("read", name)]
    # Checked again after the await: the ACL may have changed.
    infos = [info for info in await parts.descriptions.of(names) if asked.may("read", info.name)]
    rows = [
        _row(info, parts.history.rate(info.name), leader_of(asked, info.name)) for info in infos
    ]
    matching = [row for row in rows if _matches(row, wanted) and (not only or row["problems"])]
    matching.sort(key=_ORDER[sort])
    pages = max(1, -(-len(matching) // PER_PAGE))
    number = min(number, pages)
    shown = matching[(number - 1) * PER_PAGE : number * PER_PAGE]
    data = {
        "totals": {
            "streams": len(rows),
            "failed": sum(row["state"] == "failed" for row in rows),
            "damaged": sum(row["problems"] > (row["state"] == "failed") for row in rows),
            "damaged_offsets": sum(row["damaged_offsets"] for row in rows),
            "size_bytes": sum(row["size_bytes"] for row in rows),
            "rate": round(sum(row["rate"] for row in rows), 2),
            "received_bytes_rate": round(sum(row["received_bytes_rate"] for row in rows), 1),
        },
        "matching": len(matching),
        "page": number,
        "pages": pages,
        "streams": shown,
        "shape": [row["name"] for row in shown] + _troubled(shown) + _replicated(shown),
    }
    query = {name: one for name, one in (("q", wanted), ("only", only)) if one}
    links = {one: "?" + urlencode({**query, "sort": one}) for one in SORTS}
    paging = {**query, "sort": sort}
    return Shown(
        "Streams",
        data,
        {
            "q": wanted,
            "sort": sort,
            "only": only,
            "may_create": asked.gate.may_somewhere(asked.viewer.principal, "create"),
            "sort_links": links,
            "older": "?" + urlencode({**paging, "page": number - 1}) if number > 1 else "",
            "newer": "?" + urlencode({**paging, "page": number + 1}) if number < pages else "",
        },
    )


def _troubled(rows: list[dict[str, Any]]) -> list[list[Any]]:
    found = [(row["name"], row["state"], row["problems"]) for row in rows if row["problems"]]
    return [list(one) for one in found]


def _replicated(rows: list[dict[str, Any]]) -> list[list[Any]]:
    found = [(row["name"], row["replication"]) for row in rows if row["replication"]]
    return [[name, one["state"], one["leader"]] for name, one in found]


def _row(info: StreamInfo, rate: Rate, replication: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "name": info.name,
        "subject": info.subject,
        "state": info.state,
        "records": info.records,
        "log_start_offset": info.log_start_offset,
        "high_watermark": info.high_watermark,
        "size_bytes": info.size_bytes,
        "segment_count": info.segment_count,
        "rate": rate.records,
        "received_bytes_rate": rate.received_bytes,
        "history": rate.history,
        "problems": len(info.quarantined) + (info.state == "failed"),
        "damaged_offsets": _damaged_offsets(info),
        "warnings": len(info.warnings),
        "replication": replication,
    }


def _matches(row: dict[str, Any], wanted: str) -> bool:
    lowered = wanted.lower()
    return lowered in row["name"].lower() or lowered in row["subject"].lower()


_STATES = ("failed", "detached", "paused", "read-only")
_ORDER: dict[str, Any] = {
    "name": lambda row: row["name"],
    "rate": lambda row: (-row["rate"], row["name"]),
    "records": lambda row: (-row["records"], row["name"]),
    "size": lambda row: (-row["size_bytes"], row["name"]),
    "state": lambda row: (
        _STATES.index(row["state"]) if row["state"] in _STATES else len(_STATES),
        row["name"],
    ),
}


# --- health ---


async def health(asked: Asked) -> Shown:
    """Show the answers of `/livez` and `/readyz`, and the conditions that the daemon reports."""
    parts = asked.parts
    ready, readiness = await parts.health.readiness(partial(asked.may, "read"))
    data: dict[str, Any] = {"ready": ready, **readiness, "live": parts.health.liveness()}
    data["daemon"] = None
    if parts.health.is_serving:
        info = parts.broker.daemon_info(partial(asked.may, "read"))
        data["daemon"] = info.to_wire()
    data["damaged"] = await _damaged(asked) if parts.health.is_serving else []
    data["shape"] = [
        data["status"],
        sorted(data.get("checks", {})),
        data["damaged"],
    ]
    return Shown("Health", data)


def _damaged_offsets(info: StreamInfo) -> int:
    return sum(one["next_offset"] - one["first_offset"] for one in info.quarantined)


async def _damaged(asked: Asked) -> list[dict[str, Any]]:
    """Return the streams with unreadable records, each with the number of its unreadable
    offsets."""
    parts = asked.parts
    names = [name for name in parts.broker.stream_names() if asked.may("read", name)]
    infos = await parts.descriptions.of(names)
    return [
        {
            "name": info.name,
            "ranges": len(info.quarantined),
            "offsets": _damaged_offsets(info),
        }
        for info in infos
        if info.quarantined and asked.may("read", info.name)
    ][:_MAX_DAMAGED]
