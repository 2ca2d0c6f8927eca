"""Move the checkpoint of a consumer: a form, a preview of what follows from it, and the change."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from liftlog.errors import InvalidArgument, LiftlogError
from liftlog.log import Log
from liftlog.names import check_consumer_name
from liftlog.protocol.checkpoints import Checkpoint
from liftlog.server.web import answers
from liftlog.server.web.asking import Asked, Shown
from liftlog.server.web.entering import check_form, read_form
from liftlog.server.web.formats import parse_moment
from liftlog.server.web.pages.stream import PROBLEMS

_COMMIT_SECONDS = 30.0
_MAX_DIGITS = 19


def _consumer(asked: Asked) -> str:
    """Raises Forbidden, InvalidArgument."""
    asked.authorize("read")
    asked.authorize("commit")
    consumer = asked.request.match_info["consumer"]
    check_consumer_name(consumer)
    return consumer


async def moving(asked: Asked) -> Shown:
    """Opening the page changes nothing; with `to`, it shows what moving there would mean."""
    consumer, stream = _consumer(asked), asked.stream
    checkpoints = asked.parts.broker.checkpoints
    present = checkpoints.fetch(consumer, stream, check=False)
    log = asked.parts.broker.stream(stream).log
    wanted, problem, target = asked.text("to"), "", None
    if wanted:
        try:
            target = await asked.scan(_target, log, wanted)
        except InvalidArgument as error:
            problem = error.message
    asked.authorize("commit")  # again after the await
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


def _target(log: Log, wanted: str) -> int:
    """The offset that these words mean now. Blocking. Raises InvalidArgument."""
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
            "expected start, end, an offset, a time such as 2026-01-31 15:00, or 15m, 2h, 3d for a "
            "time ago"
        )
    return min(end, max(first, log.offset_for_timestamp(moment)))


def _preview(log: Log, present: Checkpoint | None, target: int) -> dict[str, Any]:
    """`moved_by` counts offsets, backwards if negative; None if it is not known where the consumer
    stands."""
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
    """Refused if the checkpoint has moved since the preview, or the stream is another one."""
    consumer, stream = _consumer(asked), asked.stream
    form = await read_form(asked.request)
    check_form(asked.parts.sessions, asked.request, form, _purpose(consumer, stream))
    asked.authorize("commit")  # again after the await
    await _commit(asked, consumer, form)
    return answers.see_other(f"{asked.request.path}?moved=1")


async def _commit(asked: Asked, consumer: str, form: dict[str, str]) -> None:
    checkpoints, stream = asked.parts.broker.checkpoints, asked.stream
    present = checkpoints.fetch(consumer, stream, check=False)
    settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def told(error: LiftlogError | None) -> None:
        if settled.done():  # this request was cancelled
            return
        if error is None:
            settled.set_result(None)
        else:
            settled.set_exception(error)

    checkpoints.commit(
        consumer,
        stream,
        _number(form, "offset"),
        told,
        expected=_number(form, "expected"),
        metadata="" if present is None else present.metadata,
        incarnation=form.get("incarnation", ""),
        epoch=_number(form, "epoch"),
        owner=asked.viewer.principal or "",
    )
    async with asyncio.timeout(_COMMIT_SECONDS):
        await settled


def _number(form: dict[str, str], name: str) -> int:
    text = form.get(name, "")
    if not (text.isascii() and text.isdecimal()) or len(text) > _MAX_DIGITS:
        raise InvalidArgument(f"the form lacks {name}")
    return int(text)


def _purpose(consumer: str, stream: str) -> str:
    return f"move {consumer} in {stream}"
