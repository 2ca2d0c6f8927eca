"""Shows the records of a stream, a page at a time, and the search form above them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode

from liftlog.errors import InvalidArgument, MissingDependency
from liftlog.records.columns.selection import Selection, parse_selection
from liftlog.records.message_headers import count_lines, header_lines
from liftlog.server.reading.walking import Damage, Item
from liftlog.server.web import conditions, content
from liftlog.server.web.asking import Asked, Shown
from liftlog.server.web.browsing import Found, Wanted, bounds, browse, parse_key
from liftlog.server.web.conditions import KINDS, Condition, parse_condition
from liftlog.server.web.fields import Fields
from liftlog.server.web.formats import parse_moment

LIMITS = (50, 25, 100, 250)
"""Choices for the number of records on a page; the first number is the default."""
ORDERS = ("newest", "oldest")

Parsed = TypeVar("Parsed")


@dataclass(frozen=True, slots=True)
class Form:
    """The search form. `texts` contains the contents of the fields. `problems` contains the reason
    for each wrong field."""

    texts: dict[str, str]
    problems: dict[str, str]
    wanted: Wanted
    view: str
    fields: Fields | None

    def link(self, **changes: object) -> str:
        """Return the query of the same form with some values changed; None removes a value."""
        usual = {
            "kind": KINDS[0],
            "limit": str(LIMITS[0]),
            "view": content.VIEWS[0],
        }
        asked = {**self.texts, **changes}
        if not asked["value"]:
            asked["kind"] = None
        kept = {name: one for name, one in asked.items() if one and one != usual.get(name)}
        return "?" + urlencode(kept)


async def read_form(asked: Asked) -> Form:
    """Read the form from the query. Errors in a field are stored in `problems`. Raises
    InvalidArgument only for a choice that the form does not offer."""
    return await _Reading(asked).read()


class _Reading:
    """Reads one form. `above` is not a field of the form. The script of the page sends it to
    request only new records."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._texts: dict[str, str] = {}
        self._problems: dict[str, str] = {}

    async def read(self) -> Form:
        asked = self._asked
        offset = self._field("offset", lambda _: asked.number("offset", 0))
        since, until = self._field("time", _moment), self._field("until", _moment)
        if since is not None and until is not None and since > until:
            self._problems["until"] = "this is before the time in From"
        subjects = self._field("subject", lambda text: parse_selection(subjects=[text]).subjects)
        keys = self._field("key", lambda text: (parse_key(text),))
        headers = self._field("header", lambda text: parse_selection(headers=[text]).headers)
        values = await self._values()
        fields = self._field("fields", Fields.parse)
        # If the address contains only an offset, the page shows the records that follow this
        # offset.
        order = asked.choice("order", ORDERS) if asked.text("order") or offset is None else "oldest"
        limit = int(asked.choice("limit", tuple(map(str, LIMITS))))
        wanted = Wanted(
            limit,
            Selection(subjects, keys, headers, values=values),
            is_newest_first=order == ORDERS[0],
            offset=offset,
            above=asked.number("above", 0),
            since_ns=since,
            until_ns=until,
        )
        view = asked.choice("view", content.VIEWS)
        self._texts |= {"order": order, "limit": str(limit), "view": view}
        return Form(self._texts, self._problems, wanted, view, fields)

    def _field(self, name: str, parse: Callable[[str], Parsed]) -> Parsed | None:
        """Parse a field; return None if it is empty or wrong."""
        try:
            text = self._texts[name] = self._asked.text(name)
            return parse(text) if text else None
        except InvalidArgument as error:
            self._texts.setdefault(name, "")
            self._problems[name] = error.message.removeprefix(f"{name}: ")
            return None

    async def _values(self) -> Condition | None:
        kind = self._texts["kind"] = self._asked.choice("kind", KINDS)
        text = self._field("value", str)
        if text is None:
            return None
        try:
            # Compiling a large expression takes a while, so it runs in a thread.
            return await self._asked.scan(parse_condition, kind, text)
        except (InvalidArgument, MissingDependency) as error:
            self._problems["value"] = error.message
            return None


def _moment(text: str) -> int:
    found = parse_moment(text)
    if found is None:
        raise InvalidArgument(
            "expected a time such as 2026-01-31 15:00 or yesterday 15:00, or 15m, 2h, 3d for a "
            "time ago"
        )
    return found


_MAX_KEY_BYTES = 1000
"""Maximum number of bytes of a key that a list of records shows."""
_MAX_HEADERS = 20
_MAX_HEADER_BYTES = 200
_EXPANDED_CHARS = 256 * 1024
"""Maximum length, in characters, of all expanded values on a page together. The page of a single
record shows the whole value."""


async def records(asked: Asked) -> Shown:
    stream = asked.authorize("read")
    form = await read_form(asked)
    limits = bounds(asked.parts.broker.readable_stream(stream).log)
    title = f"Records of {stream}"
    choices = {
        "form": form.texts,
        "has_rare_fields": bool(
            _RARE & (form.problems.keys() | {name for name, text in form.texts.items() if text})
        )
        or _is_unusual(form.texts),
        "may_publish": asked.may("admin", stream) and not stream.startswith("_"),
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
    rows = _Rows(form.view, form.fields)
    found = await browse(asked, stream, form.wanted, rows.row)
    # Read again, because records have arrived in the meantime.
    limits = bounds(asked.parts.broker.readable_stream(stream).log)
    data = {
        "stream": stream,
        **limits,
        "view": form.view,
        "order": form.texts["order"],
        "fields": [] if form.fields is None else form.fields.names,
        "first_offset": found.first_offset,
        "next_offset": found.next_offset,
        "at_end": found.at_end,
        "searched": _searched(found),
        "note": found.note,
        "records": found.rows,
    }
    return Shown(title, data, {**choices, **_links(form, data, found)})


_RARE = {"until", "key", "header", "offset", "fields"}
"""Fields that a phone hides unless they are filled in or requested. The choices in `_is_unusual`
are also hidden unless they differ from the default."""


def _is_unusual(texts: dict[str, str]) -> bool:
    usual = {"order": ORDERS[0], "limit": str(LIMITS[0]), "view": content.VIEWS[0]}
    return any(texts[name] != one for name, one in usual.items())


def _means_json(texts: dict[str, str]) -> bool:
    """Return True if the search text looks like a comparison with a field of JSON."""
    if texts["kind"] != KINDS[0] or not texts["value"]:
        return False
    try:
        return conditions.FieldIs.parse(texts["value"]).compare is not None
    except InvalidArgument:
        return False


def _searched(found: Found) -> float:
    """Return the examined part of the range, from 0 to 1."""
    length = found.span.high - found.span.low
    return 1.0 if found.at_end or not length else round(min(found.looked_at / length, 1.0), 4)


class _Rows:
    """Creates the rows of one page, and limits the total length of expanded values."""

    def __init__(self, view: str, fields: Fields | None) -> None:
        self._view, self._fields = view, fields
        self._left = _EXPANDED_CHARS

    def row(self, item: Item) -> dict[str, Any]:
        if isinstance(item, Damage):
            return {"kind": "damage", **item._asdict()}
        shown, whole = content.preview(item.value, self._view), None
        if self._left > 0 and self._fields is None:
            whole = content.expanded(item.value, self._view)
            self._left -= len(whole.text)
        key, block = item.key, item.raw_headers
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
            "fields": None if self._fields is None else self._fields.of(item.value),
            "expanded": whole._asdict() if whole else None,
        }


def _headers(block: bytes) -> list[tuple[str, str]]:
    return [
        (name.decode("utf-8", "replace"), value[:_MAX_HEADER_BYTES].decode("utf-8", "replace"))
        for name, value in header_lines(block, _MAX_HEADERS)
    ]


def _links(form: Form, data: dict[str, Any], found: Found) -> dict[str, Any]:
    """Return links to other pages of the same list."""
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
        "as_json": form.link(kind="json") if _means_json(form.texts) else "",
        "is_newest_first": wanted.is_newest_first,
        # The page's script requests new records under this address.
        "follow": form.link(offset=None) if follows else "",
        "above": span.high,
    }
