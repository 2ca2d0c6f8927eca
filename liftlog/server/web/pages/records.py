"""The records of a stream, a page at a time."""

from __future__ import annotations

from typing import Any

from liftlog.errors import InvalidArgument
from liftlog.records.message_headers import count_lines, header_lines
from liftlog.server.web import conditions, content
from liftlog.server.web.asking import Asked, Shown
from liftlog.server.web.browsing import Found, bounds, browse
from liftlog.server.web.pages.records_form import LIMITS, ORDERS, Form, read_form
from liftlog.server.web.walking import Damage, Item

_MAX_KEY_BYTES = 1000
"""The part of a key that is shown in a list of records."""
_MAX_HEADERS = 20
_MAX_HEADER_BYTES = 200
_EXPANDED_CHARS = 256 * 1024
"""Of all values of a page, expanded; the others are shown on the pages of their records."""


async def records(asked: Asked) -> Shown:
    stream = asked.authorize("read")
    form = await read_form(asked)
    limits = bounds(asked.parts.broker.stream(stream).log)
    title = f"Records of {stream}"
    choices = {
        "form": form.texts,
        "problems": form.problems,
        "limits": LIMITS,
        "views": content.VIEWS,
        "kinds": conditions.KINDS,
        "orders": ORDERS,
    }
    if form.problems:
        reasons = "; ".join([f"{name}: {why}" for name, why in form.problems.items()])
        data = {"stream": stream, **limits, "records": None}
        return Shown(title, data, choices, InvalidArgument(reasons))
    rows = _Rows(form.view)
    found = await browse(asked, stream, form.wanted, rows.row)
    # Read again: records have arrived since.
    limits = bounds(asked.parts.broker.stream(stream).log)
    data = {
        "stream": stream,
        **limits,
        "view": form.view,
        "order": form.texts["order"],
        "first_offset": found.first_offset,
        "next_offset": found.next_offset,
        "at_end": found.at_end,
        "searched": _searched(found),
        "note": found.note,
        "records": found.rows,
    }
    return Shown(title, data, {**choices, **_links(form, data, found)})


def _searched(found: Found) -> float:
    """The part of the span that was looked at, from 0 to 1."""
    length = found.span.high - found.span.low
    return 1.0 if found.at_end or not length else round(min(found.looked_at / length, 1.0), 4)


class _Rows:
    """Makes the rows of one page; bounds how much of them is shown expanded."""

    def __init__(self, view: str) -> None:
        self._view = view
        self._left = _EXPANDED_CHARS

    def row(self, item: Item) -> dict[str, Any]:
        if isinstance(item, Damage):
            return {"kind": "damage", **item._asdict()}
        shown, whole = content.preview(item.value, self._view), None
        if self._left > 0:
            whole = content.expanded(item.value, self._view)
            self._left -= len(whole.text)
        key, block = item.key, bytes(getattr(item.headers, "raw", b""))
        return {
            "kind": "record",
            "offset": item.offset,
            "timestamp_ns": item.timestamp_ns,
            "subject": item.subject,
            "key": content.as_key(key[:_MAX_KEY_BYTES] if key else key),
            "key_bytes": None if key is None else len(key),
            "headers": count_lines(block),
            "first_headers": _headers(block),
            "value_bytes": None if item.value is None else len(item.value),
            **shown._asdict(),
            "expanded": whole._asdict() if whole else None,
        }


def _headers(block: bytes) -> list[tuple[str, str]]:
    return [
        (name.decode("utf-8", "replace"), value[:_MAX_HEADER_BYTES].decode("utf-8", "replace"))
        for name, value in header_lines(block, _MAX_HEADERS)
    ]


def _links(form: Form, data: dict[str, Any], found: Found) -> dict[str, Any]:
    """Links to other pages of the same list. In a search only the browser's button goes back."""
    wanted = form.wanted
    first, span = data["first_offset"], found.span
    follows = wanted.is_newest_first and wanted.until_ns is None and first >= span.high - 1
    if wanted.is_newest_first:
        older = "" if data["at_end"] else form.link(offset=data["next_offset"])
        is_newest = first >= span.high - 1
        newer = "" if is_newest else form.link(offset=min(span.high - 1, first + wanted.limit))
    else:
        older = form.link(offset=max(span.low, first - wanted.limit)) if first > span.low else ""
        newer = "" if data["at_end"] else form.link(offset=data["next_offset"])
    return {
        "oldest": form.link(offset=None, order="oldest"),
        "newest": form.link(offset=None, order="newest"),
        "older": older,
        "newer": newer,
        "onward": older if wanted.is_newest_first else newer,
        "has_condition": wanted.has_condition,
        "is_newest_first": wanted.is_newest_first,
        # What arrives from now on: the script of the page asks for it.
        "follow": form.link(offset=None) if follows else "",
        "above": span.high,
    }
