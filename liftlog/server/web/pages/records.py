"""The records of a stream, a page at a time, and one record as a whole."""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import urlencode

from aiohttp import web

from liftlog.errors import InvalidArgument
from liftlog.records.decode import Record
from liftlog.records.json_form import HeaderValues, group_headers, record_object
from liftlog.records.message_headers import count_lines, header_lines
from liftlog.server.http.bodies import parse_offset
from liftlog.server.http.one_record import check_readable, read_record
from liftlog.server.web import answers, content
from liftlog.server.web.asking import MAX_TEXT, Asked, Shown
from liftlog.server.web.browsing import Damage, Wanted, bounds, browse
from liftlog.server.web.formats import parse_moment

LIMITS = (25, 50, 100, 250)
_DEFAULT_LIMIT = 50
_MAX_JSON_BYTES = 1024 * 1024
_MAX_HEADERS = 200
_MAX_HEADER_CHARS = 2000
_MAX_KEY_BYTES = 1000
"""The part of a key that is shown in a list of records."""


async def records(asked: Asked) -> Shown:
    stream = asked.authorize("read")
    wanted, view = _wanted(asked), asked.choice("view", content.VIEWS)
    found = await browse(asked, stream, wanted, partial(_row, view=view))
    log = asked.parts.broker.stream(stream).log
    limits = bounds(log)
    data = {
        "stream": stream,
        **limits,
        "view": view,
        "first_offset": found.first_offset,
        "next_offset": found.next_offset,
        "at_end": found.at_end,
        "note": found.note,
        "records": found.rows,
    }
    form = {
        "offset": asked.text("offset"),
        "time": asked.text("time"),
        "subject": wanted.subject,
        "key": wanted.key,
        "header": wanted.header,
        "limit": wanted.limit,
        "view": view,
    }
    return Shown(f"Records of {stream}", data, {"form": form, **_links(form, data, wanted)})


def _wanted(asked: Asked) -> Wanted:
    limit = asked.number("limit", _DEFAULT_LIMIT)
    if limit not in LIMITS:
        raise InvalidArgument(f"limit: expected one of {', '.join(map(str, LIMITS))}")
    offset = asked.number("offset", 0) if asked.text("offset") else None
    when = asked.text("time")
    time_ns = parse_moment(when) if when else None
    if when and time_ns is None:
        raise InvalidArgument(
            "time: expected a time such as 2026-01-31 15:00, or 15m, 2h, 3d for a time ago"
        )
    return Wanted(
        limit, offset, time_ns, asked.text("subject"), asked.text("key"), asked.text("header")
    )


def _row(item: Record | Damage, view: str) -> dict[str, Any]:
    if isinstance(item, Damage):
        return {"kind": "damage", **item._asdict()}
    shown = content.preview(item.value, view)
    key = item.key
    return {
        "kind": "record",
        "offset": item.offset,
        "timestamp_ns": item.timestamp_ns,
        "subject": item.subject,
        "key": content.as_key(key[:_MAX_KEY_BYTES] if key else key),
        "key_bytes": None if key is None else len(key),
        "headers": count_lines(_block(item)),
        "value_bytes": None if item.value is None else len(item.value),
        **shown._asdict(),
    }


def _links(form: dict[str, Any], data: dict[str, Any], wanted: Wanted) -> dict[str, Any]:
    """Links to other pages of the same list. In a search only the browser's button goes back."""
    kept = {
        name: value
        for name, value in form.items()
        if value and name not in ("offset", "time") and (name, value) != ("view", "auto")
        and (name, value) != ("limit", _DEFAULT_LIMIT)
    }  # fmt: skip

    def link(offset: int) -> str:
        return "?" + urlencode({"offset": offset, **kept})

    first, start = data["first_offset"], data["log_start_offset"]
    back = first > start and not wanted.has_condition
    return {
        "oldest": link(start),
        "newest": "?" + urlencode({name: kept[name] for name in kept if name in ("view", "limit")}),
        "older": link(max(start, first - wanted.limit)) if back else "",
        "newer": "" if data["at_end"] else link(data["next_offset"]),
        "has_condition": wanted.has_condition,
        "limits": LIMITS,
        "views": content.VIEWS,
    }


# --- one record ---


async def record(asked: Asked) -> Shown:
    stream = asked.authorize("read")
    view = asked.choice("view", content.VIEWS)
    found = await _read(asked, stream)
    limits = bounds(asked.parts.broker.stream(stream).log)
    # The parts of the page, each of bounded cost.
    spread = asked.parts.spread
    shown = await spread.run(content.show, found.value, view)
    headers = await spread.run(_header_values, found)
    whole = await spread.run(_whole, found, headers)
    lines = count_lines(_block(found))
    data = {
        "stream": stream,
        **limits,
        "record": whole,
        "is_tombstone": found.value is None,
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


def _block(record: Record) -> bytes:
    return bytes(getattr(record.headers, "raw", b""))


def _header_values(record: Record) -> HeaderValues:
    """The first headers: a record may have hundreds of thousands."""
    found: HeaderValues = {}
    group_headers(found, header_lines(_block(record), _MAX_HEADERS))
    return found


def _whole(record: Record, headers: HeaderValues) -> dict[str, Any]:
    if len(record.value or b"") > _MAX_JSON_BYTES:
        record = record._replace(value=None)
    return record_object(record, headers=headers)


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_HEADER_CHARS else text[:_MAX_HEADER_CHARS] + " …"


async def value(asked: Asked) -> web.Response:
    """The bytes as a download: a browser must never show them as a page of this site."""
    stream = asked.authorize("read")
    found = await _read(asked, stream)
    name = f'attachment; filename="{stream}-{found.offset}"'
    return web.Response(
        body=found.value or b"",
        content_type="application/octet-stream",
        headers={**answers.HEADERS, "Content-Disposition": name},
    )


async def _read(asked: Asked, stream: str) -> Record:
    """Raises NoRecord, also for a record that the viewer may not read."""
    offset = parse_offset(asked.request.match_info["offset"])
    log = asked.parts.broker.stream(stream).log
    found, _ = await asked.scan(read_record, log, offset)
    # Checked after the await: the ACL may have changed since the first check.
    check_readable(asked.gate, found, asked.viewer.principal, stream, peer=asked.peer)
    return found
