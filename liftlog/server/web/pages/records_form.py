"""The form above a list of records: what is filled in, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlencode

from liftlog.errors import InvalidArgument
from liftlog.records.selection import Selection, parse_selection
from liftlog.server.web import content
from liftlog.server.web.asking import Asked
from liftlog.server.web.browsing import Wanted, parse_key
from liftlog.server.web.conditions import KINDS, Condition, parse_condition
from liftlog.server.web.formats import parse_moment

LIMITS = (50, 25, 100, 250)
"""The first is meant if none is named."""
ORDERS = ("newest", "oldest")

Parsed = TypeVar("Parsed")


@dataclass(frozen=True, slots=True)
class Form:
    """`texts` is what the fields show, and `problems` says which of them are wrong, and why."""

    texts: dict[str, str]
    problems: dict[str, str]
    wanted: Wanted
    view: str

    def link(self, **changes: object) -> str:
        """The query for the same form with other values; None leaves one out."""
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
    """Raises InvalidArgument only for what no form sends: a choice that does not exist."""
    return await _Reading(asked).read()


class _Reading:
    """`above` is not a field: with it the script of the page asks for what is new."""

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
        # An address with an offset and nothing else shows what follows it.
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
        return Form(self._texts, self._problems, wanted, view)

    def _field(self, name: str, parse: Callable[[str], Parsed]) -> Parsed | None:
        """None for a field that is empty, or wrong."""
        try:
            text = self._texts[name] = self._asked.text(name)
            return parse(text) if text else None
        except InvalidArgument as error:
            self._texts.setdefault(name, "")
            self._problems[name] = error.message
            return None

    async def _values(self) -> Condition | None:
        kind = self._texts["kind"] = self._asked.choice("kind", KINDS)
        text = self._field("value", str)
        if text is None:
            return None
        try:
            # An expression may take a while.
            return await self._asked.scan(parse_condition, kind, text)
        except InvalidArgument as error:
            self._problems["value"] = error.message
            return None


def _moment(text: str) -> int:
    found = parse_moment(text)
    if found is None:
        raise InvalidArgument(
            "expected a time such as 2026-01-31 15:00, or 15m, 2h, 3d for a time ago"
        )
    return found
