"""Shows one whole record, and offers its value as a download."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from liftlog.records.decode import Record
from liftlog.records.json_form import (
    HEADERS_BASE64,
    HeaderValues,
    exact_headers,
    group_headers,
    record_object,
)
from liftlog.records.message_headers import count_lines, header_lines
from liftlog.server.http.bodies import parse_offset
from liftlog.server.reading.one_record import check_readable, read_record
from liftlog.server.web import answers, content
from liftlog.server.web.asking import MAX_TEXT, Asked, Shown
from liftlog.server.web.browsing import bounds

_MAX_JSON_BYTES = 1024 * 1024
_MAX_HEADERS = 200
_MAX_HEADER_CHARS = 2000


async def record(asked: Asked) -> Shown:
    stream = asked.authorize("read")
    view = asked.choice("view", content.VIEWS)
    found = await read(asked, stream, _offset(asked))
    is_compacted = False
    if found.value is None:
        is_compacted = (await asked.describe()).is_compacted
        asked.authorize("read")  # checked again after the await
    limits = bounds(asked.parts.broker.readable_stream(stream).log)
    # The parts of the page. The cost of each part is bounded.
    spread = asked.parts.spread
    shown = await spread.run(content.show, found.value, view)
    headers, exact = await spread.run(_header_values, found)
    whole = await spread.run(_whole, found, headers)
    if exact is not None:
        whole[HEADERS_BASE64] = exact
    lines = count_lines(found.raw_headers)
    data = {
        "stream": stream,
        **limits,
        "record": whole,
        "is_tombstone": found.value is None,
        "is_compacted": is_compacted,
        "key_text": content.as_key(found.key),
        "value_bytes": len(found.value or b""),
        "header_lines": lines,
        "content": shown._asdict(),
    }
    pairs = [
        (name, one)
        for name, values in headers.items()
        for one in (values if isinstance(values, list) else [values])
    ]
    extra = {
        "views": content.VIEWS,
        "asked_view": view,
        "headers": [(name, _cut(one)) for name, one in pairs],
        "headers_left_out": max(0, lines - len(pairs)),
        "key_is_findable": found.key is not None and len(data["key_text"]) <= MAX_TEXT,
    }
    return Shown(f"Record {found.offset:,} of {stream}", data, extra)


def _header_values(record: Record) -> tuple[HeaderValues, str | None]:
    """Return only the first headers, because a record can have hundreds of thousands of headers. If
    the returned headers do not represent the record exactly, also return all headers in base64."""
    found: HeaderValues = {}
    block = record.raw_headers
    in_order = group_headers(found, header_lines(block, _MAX_HEADERS))
    in_order = in_order and count_lines(block) <= _MAX_HEADERS
    return found, exact_headers(block[:_MAX_JSON_BYTES], "auto", in_order=in_order)


def _whole(record: Record, headers: HeaderValues) -> dict[str, Any]:
    if len(record.value or b"") > _MAX_JSON_BYTES:
        record = record._replace(value=None)
    return record_object(record, headers=headers)


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_HEADER_CHARS else text[:_MAX_HEADER_CHARS] + " …"


async def value(asked: Asked) -> web.Response:
    """Return the value as a download. A browser must never show it as a page of this site."""
    stream = asked.authorize("read")
    found = await read(asked, stream, _offset(asked))
    name = f'attachment; filename="{stream}-{found.offset}"'
    return web.Response(
        body=found.value or b"",
        content_type="application/octet-stream",
        headers={**answers.HEADERS, "Content-Disposition": name},
    )


def _offset(asked: Asked) -> int:
    return parse_offset(asked.request.match_info["offset"])


async def read(asked: Asked, stream: str, offset: int) -> Record:
    """Return the record. Raises NoRecord if the record does not exist, or if the viewer may not
    read it."""
    log = asked.parts.broker.readable_stream(stream).log
    found, _ = await asked.scan(read_record, log, offset)
    # Checked after the await: the ACL may have changed since the first check.
    check_readable(asked.gate, found, asked.viewer.principal, stream, peer=asked.peer)
    return found
