"""Lists the consumers of all streams that the viewer may read, the largest lag first. A form moves
the checkpoint of one consumer after a preview of the consequences."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from urllib.parse import urlencode

from aiohttp import web

from liftlog.errors import InvalidArgument, LiftlogError
from liftlog.log import Log
from liftlog.names import check_consumer_name
from liftlog.protocol.checkpoints import (
    Checkpoint,
    CheckpointAnswer,
    CheckpointsAnswer,
    CommitCheckpoint,
    FetchCheckpoint,
    ListCheckpoints,
)
from liftlog.server.web import answers
from liftlog.server.web.asking import Asked, Shown
from liftlog.server.web.entering import check_form, read_form
from liftlog.server.web.formats import parse_moment
from liftlog.server.web.pages.groups import groups
from liftlog.server.web.pages.stream import PROBLEMS
from liftlog.server.web.waiting import Place, received_ns

PER_PAGE = 50
SORTS = ("lag", "consumer", "stream", "stored")
_MAX_CONSUMERS = 10_000
_COMMIT_SECONDS = 30.0
_MAX_DIGITS = 19


_BLANK = {**Checkpoint().to_wire(), "lag_seconds": None, "may_move": False}
"""Default values, because a node with another version may report fewer fields."""


async def consumers(asked: Asked) -> Shown:
    wanted, sort = asked.text("q"), asked.choice("sort", SORTS)
    number = max(1, asked.number("page", 1, 10**6))
    found, has_more = await all_consumers(asked)
    rows = [row for row in found if asked.may("read", row["stream"]) and _matches(row, wanted)]
    rows.sort(key=_ORDER[sort])
    pages = max(1, -(-len(rows) // PER_PAGE))
    number = min(number, pages)
    shown = rows[(number - 1) * PER_PAGE : number * PER_PAGE]
    await _add_seconds(asked, shown)
    shared = await groups(asked, wanted)
    await _add_seconds(asked, shared["groups"])
    # Checked again after the await: the ACL may have changed.
    shown = [row for row in shown if asked.may("read", row["stream"])]
    shared["groups"] = [row for row in shared["groups"] if asked.may("read", row["stream"])]
    for row in shown:
        row["may_move"] = asked.may("commit", row["stream"])
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
        **shared,
        "shape": [
            [[row["id"], row["problem"], row["lag_seconds"] is None] for row in shown],
            [
                [row["id"], row["lag"] is None, row["lag_seconds"] is None]
                for row in shared["groups"]
            ],
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


async def all_consumers(asked: Asked) -> tuple[list[dict[str, Any]], bool]:
    """Return the checkpoints, and True if there are more than the page examines."""
    found: list[dict[str, Any]] = []
    after: str | None = None
    while True:
        page = await asked.carry_out(ListCheckpoints(after=after))
        assert isinstance(page, CheckpointsAnswer), "the answer to checkpoints"
        found += [
            {**_BLANK, **one, "id": f"{one.get('consumer')}/{one.get('stream')}"}
            for one in page.checkpoints
        ]
        after = page.after
        if after is None or len(found) >= _MAX_CONSUMERS:
            return found, after is not None


def _matches(row: dict[str, Any], wanted: str) -> bool:
    lowered = wanted.lower()
    return lowered in row["consumer"].lower() or lowered in row["stream"].lower()


_ORDER: dict[str, Any] = {
    # Consumers that cannot continue come first: their lag is unknown.
    "lag": lambda row: (not row["problem"], -(row["lag"] or 0), row["id"]),
    "consumer": lambda row: row["id"],
    "stream": lambda row: (row["stream"], row["consumer"]),
    "stored": lambda row: (-row["time_ns"], row["id"]),
}


async def _add_seconds(asked: Asked, rows: list[dict[str, Any]]) -> None:
    """Add to each row the time that the oldest unread record of its consumer or group has been in
    the stream."""
    behind: list[tuple[dict[str, Any], Place]] = []
    for row in rows:
        if row["lag"] == 0:
            row["lag_seconds"] = 0.0
        elif row["lag"]:
            try:
                log = asked.parts.broker.readable_stream(row["stream"]).log
            except LiftlogError:  # deleted meanwhile, or not readable: unknown
                continue
            first = max(log.high_watermark - row["lag"], log.log_start_offset)
            behind.append((row, Place(log, row.get("offset", first))))
    if not behind:
        return
    stamps = await asked.scan(received_ns, [place for _, place in behind])
    for (row, _), stamp in zip(behind, stamps, strict=True):
        if stamp is not None:
            row["lag_seconds"] = round(max(0.0, time.time() - stamp / 1e9), 1)


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
    """Show the form that moves a checkpoint. With `to` in the query, also show the consequences of
    the move. Opening the page changes nothing."""
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
    """Redirect to the page that moves the checkpoint of a consumer, for the form that names a
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
    """Return the consequences of a move to `target`. `moved_by` counts offsets and is negative for
    a move backwards. It is None if the position of the consumer is unknown."""
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
