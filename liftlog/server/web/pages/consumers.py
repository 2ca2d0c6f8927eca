"""Lists the consumers of all streams that the viewer may read, the largest lag first. A form moves
the checkpoint of one consumer after a preview of the consequences."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlencode

from aiohttp import web

from liftlog.errors import InvalidArgument
from liftlog.log import Log
from liftlog.names import check_consumer_name
from liftlog.protocol.checkpoints import (
    Checkpoint,
    CheckpointAnswer,
    CommitCheckpoint,
    FetchCheckpoint,
)
from liftlog.server.vitals.slices import Slices
from liftlog.server.web import answers
from liftlog.server.web.asking import Asked, Shown
from liftlog.server.web.entering import check_form, read_form
from liftlog.server.web.formats import parse_moment
from liftlog.server.web.pages.stream import PROBLEMS
from liftlog.server.web.readers import SORTS, Row, add_seconds

PER_PAGE = 50
MAX_GROUPS = 50
"""Maximum number of groups shown, the largest lag first; a search finds other groups."""
_ROWS_PER_SLICE = 500
_COMMIT_SECONDS = 30.0
_MAX_DIGITS = 19


async def consumers(asked: Asked) -> Shown:
    wanted, sort = asked.text("q"), asked.choice("sort", SORTS)
    number = max(1, asked.number("page", 1, 10**6))
    listing = await asked.parts.readers.listing()
    rows = await _selected(asked, listing.sorted_by(sort), wanted, "consumer")
    groups = await _selected(asked, listing.groups, wanted, "group")
    pages = max(1, -(-len(rows) // PER_PAGE))
    number = min(number, pages)
    shown = [row.copy() for row in rows[(number - 1) * PER_PAGE : number * PER_PAGE]]
    shown_groups = [row.copy() for row in groups[:MAX_GROUPS]]
    await add_seconds([*shown, *shown_groups], listing, asked.parts.broker, asked.scan)
    # Checked again after the await: the ACL may have changed.
    shown = [row for row in shown if asked.may("read", row["stream"])]
    shown_groups = [row for row in shown_groups if asked.may("read", row["stream"])]
    for row in shown:
        row["may_move"] = asked.may("commit", row["stream"])
    data = {
        "totals": {
            "consumers": len(rows),
            "lag": sum(row["lag"] or 0 for row in rows),
            "problems": sum(bool(row["problem"]) for row in rows),
        },
        "more": listing.has_more,
        "page": number,
        "pages": pages,
        "consumers": shown,
        "groups": shown_groups,
        "group_count": len(groups),
        "shape": [
            [[row["id"], row["problem"], row["lag_seconds"] is None] for row in shown],
            [[row["id"], row["lag"] is None, row["lag_seconds"] is None] for row in shown_groups],
        ],
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


async def _selected(asked: Asked, rows: list[Row], wanted: str, kind: str) -> list[Row]:
    """Return the rows that the viewer may see and whose name or stream contains `wanted`."""
    lowered, may = wanted.lower(), {row["stream"]: False for row in rows}
    for stream in may:
        may[stream] = asked.may("read", stream)
    found: list[Row] = []
    slices = Slices()
    for first in range(0, len(rows), _ROWS_PER_SLICE):
        found += [
            row
            for row in rows[first : first + _ROWS_PER_SLICE]
            if may[row["stream"]]
            and (not lowered or lowered in row[kind].lower() or lowered in row["stream"].lower())
        ]
        await slices.pause()
    return found


# --- moving one ---


def _consumer(asked: Asked) -> str:
    """Check the viewer's rights, and return the name of the consumer. Raises Forbidden,
    InvalidArgument."""
    asked.authorize("read")
    asked.authorize("commit")
    consumer = asked.request.match_info["consumer"]
    check_consumer_name(consumer)
    return consumer


async def moving(asked: Asked) -> Shown:
    """Show the form that moves a checkpoint. If the query contains `to`, also show the consequences
    of the move. Opening the page changes nothing."""
    consumer, stream = _consumer(asked), asked.stream
    present = await _present(asked, consumer)
    log = asked.parts.broker.readable_stream(stream).log
    wanted, problem, target = asked.text("to"), "", None
    if wanted:
        try:
            target = await asked.scan(_target, log, wanted)
        except InvalidArgument as error:
            problem = error.message
    asked.authorize("commit")  # checked again after the await
    data: dict[str, Any] = {
        "stream": stream,
        "consumer": consumer,
        "log_start_offset": log.log_start_offset,
        "high_watermark": log.high_watermark,
        "present": None if present is None else present.to_wire(),
        "target": None if target is None else _preview(log, present, target),
    }
    token = asked.parts.sessions.form_token(asked.viewer.cookie, _purpose(consumer, stream))
    extra = {
        "to": wanted,
        "problem": problem,
        "form_token": token,
        "moved": "moved" in asked.request.query,
        "problems": PROBLEMS,
    }
    refused = InvalidArgument(problem) if problem else None
    return Shown(f"Move {consumer} in {stream}", data, extra, refused)


async def begin(asked: Asked) -> web.Response:
    """Redirect to the page that moves the checkpoint of a consumer. Handles the form that names a
    consumer without a checkpoint."""
    asked.authorize("commit")
    consumer = asked.text("name")
    check_consumer_name(consumer)
    where = f"/ui/streams/{asked.stream}/consumers/{consumer}"
    return answers.see_other(f"{where}?{urlencode({'to': asked.text('to')})}")


def _target(log: Log, wanted: str) -> int:
    """Convert `wanted` (start, end, an offset or a time) to an offset of the log at this moment.
    Blocking. Raises InvalidArgument."""
    first, end = log.log_start_offset, log.high_watermark
    if wanted in ("start", "end"):
        return first if wanted == "start" else end
    digits = wanted.replace(",", "")
    if digits.isascii() and digits.isdecimal():
        offset = int(digits)
        if not first <= offset <= end:
            raise InvalidArgument(f"the stream has the offsets {first:,} to {end:,}")
        return offset
    moment = parse_moment(wanted)
    if moment is None:
        raise InvalidArgument(
            "expected start, end, an offset, a time such as 2026-01-31 15:00 or yesterday 15:00, "
            "or 15m, 2h, 3d for a time ago"
        )
    return min(end, max(first, log.offset_for_timestamp(moment)))


def _preview(log: Log, present: Checkpoint | None, target: int) -> dict[str, Any]:
    """Return the consequences of a move to `target`. `moved_by` is a number of offsets: negative
    for a move backwards, and None if the position of the consumer is unknown."""
    stands = None if present is None or present.problem else present.offset
    return {
        "offset": target,
        "expected": 0 if present is None else present.offset,
        "moved_by": None if stands is None else target - stands,
        "to_read": log.high_watermark - target,
        "incarnation": log.incarnation,
        "epoch": log.leader_epoch,
    }


async def move(asked: Asked) -> web.Response:
    """Move the checkpoint. The request is refused if the checkpoint has moved since the preview, or
    if the stream was deleted and created again."""
    consumer, stream = _consumer(asked), asked.stream
    form = await read_form(asked.request)
    check_form(asked.parts.sessions, asked.request, form, _purpose(consumer, stream))
    asked.authorize("commit")  # checked again after the await
    await _commit(asked, consumer, form)
    asked.parts.readers.forget()
    return answers.see_other(f"{asked.request.path}?moved=1")


async def _commit(asked: Asked, consumer: str, form: dict[str, str]) -> None:
    present = await _present(asked, consumer)
    change = CommitCheckpoint(
        asked.stream,
        consumer,
        _number(form, "offset"),
        expected=_number(form, "expected"),
        metadata="" if present is None else present.metadata,
        incarnation=form.get("incarnation", ""),
        epoch=_number(form, "epoch"),
    )
    asked.authorize("commit")  # checked again after the await
    async with asyncio.timeout(_COMMIT_SECONDS):
        await asked.carry_out(change)


async def _present(asked: Asked, consumer: str) -> Checkpoint | None:
    answer = await asked.carry_out(FetchCheckpoint(asked.stream, consumer, unchecked=True))
    assert isinstance(answer, CheckpointAnswer), "the answer to checkpoint"
    return answer.info


def _number(form: dict[str, str], name: str) -> int:
    text = form.get(name, "")
    if not (text.isascii() and text.isdecimal()) or len(text) > _MAX_DIGITS:
        raise InvalidArgument(f"the form lacks {name}")
    return int(text)


def _purpose(consumer: str, stream: str) -> str:
    return f"move {consumer} in {stream}"
