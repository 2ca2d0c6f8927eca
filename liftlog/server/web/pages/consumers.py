"""All consumers of all streams that the viewer may read, the largest lag first."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from urllib.parse import urlencode

from liftlog.errors import LiftlogError
from liftlog.log import Log
from liftlog.records.decode import decode_batch
from liftlog.server.web.asking import Asked, Shown
from liftlog.server.web.pages.stream import PROBLEMS

PER_PAGE = 50
SORTS = ("lag", "consumer", "stream", "stored")
_MAX_CONSUMERS = 10_000


async def consumers(asked: Asked) -> Shown:
    wanted, sort = asked.text("q"), asked.choice("sort", SORTS)
    number = max(1, asked.number("page", 1, 10**6))
    found, has_more = await _all(asked)
    rows = [row for row in found if asked.may("read", row["stream"]) and _matches(row, wanted)]
    rows.sort(key=_ORDER[sort])
    pages = max(1, -(-len(rows) // PER_PAGE))
    number = min(number, pages)
    shown = rows[(number - 1) * PER_PAGE : number * PER_PAGE]
    await _add_seconds(asked, shown)
    # Checked again after the await: the ACL may have changed.
    shown = [row for row in shown if asked.may("read", row["stream"])]
    data = {
        "totals": {
            "consumers": len(rows),
            "lag": sum(row["lag"] or 0 for row in rows),
            "problems": sum(bool(row["problem"]) for row in rows),
        },
        "more": has_more,
        "page": number,
        "pages": pages,
        "consumers": shown,
        "shape": [[row["id"], row["problem"], row["lag_seconds"] is None] for row in shown],
    }
    query = {"q": wanted} if wanted else {}
    paging = {**query, "sort": sort}
    return Shown(
        "Consumers",
        data,
        {
            "q": wanted,
            "sort": sort,
            "sort_links": {one: "?" + urlencode({**query, "sort": one}) for one in SORTS},
            "previous": "?" + urlencode({**paging, "page": number - 1}) if number > 1 else "",
            "next": "?" + urlencode({**paging, "page": number + 1}) if number < pages else "",
            "problems": PROBLEMS,
        },
    )


async def _all(asked: Asked) -> tuple[list[dict[str, Any]], bool]:
    """The checkpoints, and whether there are more than are looked at."""
    found: list[dict[str, Any]] = []
    after: str | None = None
    while True:
        # Each page is a bounded amount of work on the event loop.
        some, after = asked.parts.broker.checkpoints.page(
            lambda stream: asked.may("read", stream), after=after
        )
        for one in some:
            wire = one.to_wire()
            found.append(
                {
                    **wire,
                    "id": f"{one.consumer}/{one.stream}",
                    "lag_seconds": None,
                    "may_move": asked.may("commit", one.stream),
                }
            )
        if after is None or len(found) >= _MAX_CONSUMERS:
            return found, after is not None
        await asyncio.sleep(0)


def _matches(row: dict[str, Any], wanted: str) -> bool:
    lowered = wanted.lower()
    return lowered in row["consumer"].lower() or lowered in row["stream"].lower()


_ORDER: dict[str, Any] = {
    # What cannot continue comes first: its lag is not known.
    "lag": lambda row: (not row["problem"], -(row["lag"] or 0), row["id"]),
    "consumer": lambda row: row["id"],
    "stream": lambda row: (row["stream"], row["consumer"]),
    "stored": lambda row: (-row["time_ns"], row["id"]),
}


async def _add_seconds(asked: Asked, rows: list[dict[str, Any]]) -> None:
    """For how long the oldest record that a consumer has not read has been in the stream."""
    behind: list[tuple[dict[str, Any], Log]] = []
    for row in rows:
        if row["lag"] == 0:
            row["lag_seconds"] = 0.0
        elif row["lag"]:
            try:
                behind.append((row, asked.parts.broker.stream(row["stream"]).log))
            except LiftlogError:  # deleted meanwhile, or it cannot be read: the lag stays unknown
                continue
    if not behind:
        return
    stamps = await asked.scan(_stamps, [(log, row["offset"]) for row, log in behind])
    for (row, _), stamp in zip(behind, stamps, strict=True):
        if stamp is not None:
            row["lag_seconds"] = round(max(0.0, time.time() - stamp / 1e9), 1)


def _stamps(places: list[tuple[Log, int]]) -> list[int | None]:
    """When the first record from each offset on was received; None if it cannot be read. Blocking:
    a batch is read for each."""
    return [_stamp(log, offset) for log, offset in places]


def _stamp(log: Log, offset: int) -> int | None:
    try:
        piece = log.read(offset, 1, 1)
        if piece is None:
            return None
        try:
            batch = decode_batch(piece.pread())
        finally:
            piece.release()
        left = batch.trim(offset)
        return int(left.timestamps_ns()[0]) if len(left) else None
    except LiftlogError:  # damaged, or removed meanwhile: the page of the stream says which
        return None
