"""`/api/v1/streams/...`: a log over HTTP, for programs without a client library.

    GET    /api/v1/streams/{stream}/bounds
    GET    /api/v1/streams/{stream}/records/{offset}   ?format=json|raw  ?encoding=auto|utf-8|base64
    POST   /api/v1/streams/{stream}/records
    DELETE /api/v1/streams/{stream}/records            ?before={offset}
    POST   /api/v1/streams/{stream}/erasures
    GET    /api/v1/streams/{stream}/erasures

The routes without `erasures` read one record, append one record, or delete the oldest records.
Programs that read whole streams use the pull port. docs/reference/http.md is normative.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

from aiohttp import web

from acl.rules import Operation
from liftlog.errors import (
    BadRequest,
    InvalidArgument,
    RequestTimeout,
)
from liftlog.log import Log
from liftlog.protocol.administration import Erased, ErasuresAnswer, ListErasures, TruncateStream
from liftlog.protocol.described import StreamInfo
from liftlog.protocol.messages import ANONYMOUS, DescribeStream, Message, StreamAnswer
from liftlog.records.json_form import Encoding
from liftlog.server.http import bodies
from liftlog.server.http.appending import Appender
from liftlog.server.http.callers import Callers, asks, peer_of
from liftlog.server.http.erasing import erased_json, erasure_from_json, erasures_json
from liftlog.server.http.failures import BodyTooLarge, UnsupportedMedia, failure
from liftlog.server.http.guard import identified, identifying, require_place
from liftlog.server.http.shares import Shares
from liftlog.server.reading.fairness import SpreadWork
from liftlog.server.reading.one_record import check_readable, read_record
from liftlog.server.requests.rights import Caller, ask_leader, carry_out
from liftlog.server.streams.broker import Broker

_PREFIX = "/api/v1/streams/{stream}"
_JSON = "application/json"
_RAW = "application/octet-stream"
_READERS = 2
_CATCH_UP_SECONDS = 1.0
"""Time, in seconds, within which a follower's copy must receive the records that its leader has
committed."""


TruncatePrefix = Callable[[str, int], Awaitable[Any]]
"""The function that deletes the records of a stream below an offset. The deletion is durable on
return."""


@dataclass(frozen=True, slots=True)
class LogApiLimits:
    """Limits on concurrent requests. In total `max_requests` are served at the same time. A caller
    with fewer than `max_of_caller` requests is always served. Each request may use the memory of
    `max_body_bytes` or of one batch."""

    max_body_bytes: int = 2 * 2**20
    body_timeout_seconds: float = 30.0
    max_requests: int = 16
    max_of_caller: int = 4


class LogApi:
    """Implements the routes of the log API; `routes()` returns them. Belongs to one event loop."""

    def __init__(
        self,
        broker: Broker,
        truncate_prefix: TruncatePrefix,
        appender: Appender,
        callers: Callers,
        limits: LogApiLimits | None = None,
    ) -> None:
        self._broker = broker
        self._truncate_prefix = truncate_prefix
        self._appender = appender
        self._callers = callers
        self._limits = limits or LogApiLimits()
        self._shares = Shares(self._limits.max_requests, self._limits.max_of_caller)
        self._spread = SpreadWork()
        self._readers = ThreadPoolExecutor(_READERS, "liftlog-http-read")

    def recognized(self, request: web.Request) -> str | None:
        return self._callers.recognized(request)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get(f"{_PREFIX}/bounds", self._guarded(self._bounds)),
            web.get(f"{_PREFIX}/records/{{offset}}", self._guarded(self._read)),
            web.post(f"{_PREFIX}/records", self._guarded(self._append)),
            web.delete(f"{_PREFIX}/records", self._guarded(self._truncate)),
            web.post(f"{_PREFIX}/erasures", self._guarded(self._erase)),
            web.get(f"{_PREFIX}/erasures", self._guarded(self._erasures)),
        ]

    async def close(self) -> None:
        await self._appender.close()
        await asyncio.to_thread(self._readers.shutdown, cancel_futures=True)

    def _guarded(
        self, serve: Callable[[web.Request, str | None], Awaitable[web.Response]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """Wrap a handler: limit the number of requests, identify the caller, and convert every
        error to an answer."""

        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                # Runs before the limits, so that unknown callers take no places from known callers.
                with identifying(request):
                    principal = await self._callers.principal(request)
                require_place(request)
            except web.HTTPException:
                raise
            except Exception as error:  # noqa: BLE001 - `failure` tells a defect from a refusal
                return failure(error)
            if principal not in (None, ANONYMOUS):
                identified(request)
            try:
                with self._shares.one(await asks(request, principal)):
                    return await serve(request, principal)
            except web.HTTPException:
                raise
            except Exception as error:  # noqa: BLE001 - `failure` tells a defect from a refusal
                return failure(error)

        return handle

    def _authorize(self, request: web.Request, principal: str | None, operation: Operation) -> str:
        """Check the caller's right and return the name of the requested stream. Raises Forbidden,
        InvalidArgument."""
        stream = request.match_info["stream"]
        self._callers.gate.authorize(principal, operation, stream, peer=peer_of(request))
        if operation != "read" and stream.startswith("_"):
            raise InvalidArgument(f"the stream {stream} belongs to the daemon")
        return stream

    # --- reading ---

    async def _bounds(self, request: web.Request, principal: str | None) -> web.Response:
        stream = self._authorize(request, principal, "read")
        known = await self._described(request, principal, stream) or self._broker.stream(stream).log
        return _json(
            {
                "stream": stream,
                "incarnation": known.incarnation,
                "leader_epoch": known.leader_epoch,
                **_offsets(known),
            }
        )

    async def _described(
        self, request: web.Request, principal: str | None, stream: str
    ) -> StreamInfo | None:
        """Return the leader's description of the stream; None if this node is the leader. Raises
        NotReady."""
        info = await self._ask_leader(request, principal, DescribeStream(stream))
        if info is None:
            self._broker.catalog.check_end_is_known(stream)
        return info

    async def _copy_with(
        self, request: web.Request, principal: str | None, stream: str, offset: int
    ) -> Log:
        """Return this node's log of the stream.

        If the leader has committed the record at `offset`, but this node's copy does not have it
        yet, wait for the copy. Raises NotLeader if the copy does not receive the record within
        `_CATCH_UP_SECONDS`.
        """
        host = self._broker.readable_stream(stream)
        if offset < host.log.high_watermark:
            return host.log
        info = await self._described(request, principal, stream)
        if info is not None and offset < info.high_watermark:
            reached = host.wait_high_watermark(offset)
            try:
                await asyncio.wait([reached], timeout=_CATCH_UP_SECONDS)
            finally:
                reached.cancel()
            if host.log.high_watermark <= offset:
                raise self._broker.catalog.not_leader(stream)
        return host.log

    async def _ask_leader(
        self, request: web.Request, principal: str | None, message: Message
    ) -> StreamInfo | None:
        """Send the request to the stream's leader and return its answer; None if this node is the
        leader."""
        answer = await ask_leader(self._caller(request, principal), message)
        return answer.info if isinstance(answer, StreamAnswer) else None

    def _caller(self, request: web.Request, principal: str | None) -> Caller:
        return Caller(principal, self._callers.gate, self._broker, peer_of(request))

    async def _read(self, request: web.Request, principal: str | None) -> web.Response:
        stream = self._authorize(request, principal, "read")
        form = _choice(request, "format", ("json", "raw"))
        encoding = _choice(request, "encoding", ("auto", "utf-8", "base64"))
        offset = bodies.parse_offset(request.match_info["offset"])
        log = await self._copy_with(request, principal, stream, offset)
        loop = asyncio.get_running_loop()
        record, block = await loop.run_in_executor(self._readers, read_record, log, offset)
        # Checked after the last await: the ACL may have changed since the first check.
        check_readable(self._callers.gate, record, principal, stream, peer=peer_of(request))
        if form == "json":
            pieces = bodies.record_json(stream, record, cast(Encoding, encoding))
            return _json_text(await self._joined(pieces))
        head = bodies.record_head(record, block)
        # A browser must never show a published value as a page of this site.
        head.append(("Content-Disposition", f'attachment; filename="{stream}-{offset}"'))
        return web.Response(body=record.value or b"", headers=head, content_type=_RAW)

    async def _joined(self, pieces: Iterator[str]) -> str:
        found = []
        while (piece := await self._spread.run(next, pieces, None)) is not None:
            found.append(piece)
        return "".join(found)

    # --- writing ---

    async def _append(self, request: web.Request, principal: str | None) -> web.Response:
        stream = self._authorize(request, principal, "admin")
        info = await self._broker.describe_stream(stream)
        media = request.content_type
        if "Content-Type" not in request.headers or media not in (_JSON, _RAW):
            raise UnsupportedMedia(f"expected Content-Type {_JSON} or {_RAW}")
        if request.headers.get("Content-Encoding", "identity") != "identity":
            raise UnsupportedMedia("expected a body without Content-Encoding")
        body = await self._body(request)
        if media == _JSON:
            message = bodies.message_from_json(body)
        else:
            message = bodies.message_from_raw(request.headers, body)
        gate = self._callers.gate
        ack = await self._appender.append(
            info, message, lambda name: gate.may(principal, "admin", name)
        )
        response = _json(
            {
                "stream": ack.stream,
                "offset": ack.offset,
                "duplicate": ack.duplicate,
                "durability": ack.durability,
            },
            status=200 if ack.duplicate else 201,
        )
        response.headers["Location"] = f"/api/v1/streams/{stream}/records/{ack.offset}"
        return response

    async def _body(self, request: web.Request) -> bytes:
        limit = self._limits.max_body_bytes
        too_large = BodyTooLarge(f"the body is larger than {limit} bytes", hint="http.max_body")
        if (request.content_length or 0) > limit:
            raise too_large
        found = bytearray()
        try:
            async with asyncio.timeout(self._limits.body_timeout_seconds):
                async for chunk in request.content.iter_any():
                    found += chunk
                    if len(found) > limit:
                        raise too_large
        except TimeoutError:
            seconds = self._limits.body_timeout_seconds
            raise RequestTimeout(f"the body did not arrive within {seconds:g} s") from None
        except (web.RequestPayloadError, ConnectionError) as error:
            raise BadRequest(f"the body ended early or is broken: {error}"[:200]) from None
        return bytes(found)

    async def _truncate(self, request: web.Request, principal: str | None) -> web.Response:
        stream = self._authorize(request, principal, "admin")
        if "before" not in request.query:
            raise InvalidArgument("before=OFFSET is missing", hint="records below it are deleted")
        offset = bodies.parse_offset(request.query["before"])
        answer = await self._ask_leader(request, principal, TruncateStream(stream, offset))
        if answer is None:
            await self._truncate_prefix(stream, offset)
        return _json({"stream": stream, **_offsets(answer or self._broker.stream(stream).log)})

    # --- erasing ---

    async def _erase(self, request: web.Request, principal: str | None) -> web.Response:
        stream = self._authorize(request, principal, "erase")
        if request.content_type != _JSON or "Content-Type" not in request.headers:
            raise UnsupportedMedia(f"expected Content-Type {_JSON}")
        message = erasure_from_json(stream, await self._body(request))
        answer = await carry_out(self._caller(request, principal), message)
        assert isinstance(answer, Erased), "the answer to erase"
        return _json(erased_json(stream, answer), status=201 if answer.erasure_id else 200)

    async def _erasures(self, request: web.Request, principal: str | None) -> web.Response:
        stream = self._authorize(request, principal, "erase")
        answer = await carry_out(self._caller(request, principal), ListErasures(stream))
        assert isinstance(answer, ErasuresAnswer), "the answer to erasures"
        return _json(erasures_json(stream, answer))


def _offsets(known: StreamInfo | Log) -> dict[str, int]:
    return {
        "log_start_offset": known.log_start_offset,
        "high_watermark": known.high_watermark,
        "log_end_offset": known.log_end_offset,
    }


def _choice(request: web.Request, name: str, known: tuple[str, ...]) -> str:
    """Return the value of a query parameter. It must be one of `known`. If the parameter is
    missing, return the first value of `known`."""
    value = request.query.get(name, known[0])
    if value not in known:
        raise InvalidArgument(f"{name}: expected one of {', '.join(known)}")
    return value


def _json(shown: dict[str, Any], *, status: int = 200) -> web.Response:
    return _json_text(json.dumps(shown, ensure_ascii=False), status=status)


def _json_text(text: str, *, status: int = 200) -> web.Response:
    return web.Response(status=status, text=text + "\n", content_type=_JSON)
