"""Shows the versions of one key: the records with this key, the newest first, and two of them side
by side."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from liftlog.errors import InvalidArgument, OffsetOutOfRange
from liftlog.records.columns.selection import Selection
from liftlog.records.decode import Record
from liftlog.server.reading.one_record import NoRecord
from liftlog.server.reading.walking import Damage, Item
from liftlog.server.web import content
from liftlog.server.web.asking import Asked, Shown
from liftlog.server.web.browsing import Wanted, browse, parse_key
from liftlog.server.web.fields import MAX_LINES, compared
from liftlog.server.web.pages.record import read

PER_PAGE = 20

Row = dict[str, Any]


async def versions(asked: Asked) -> Shown:
    """Show the versions. `before` and `after` in the query are the offsets of the two records to
    compare; the default is the newest two."""
    stream = asked.authorize("read")
    key = asked.text("key")
    if not key:
        raise InvalidArgument("key is missing", hint="say which: ?key=...")
    offset = asked.number("offset", -1)
    wanted = Wanted(
        PER_PAGE,
        Selection(keys=(parse_key(key),)),
        offset=None if offset < 0 else offset,
    )
    found = await browse(asked, stream, wanted, _row)
    rows = [row for row in found.rows if row["kind"] == "record"]
    newest = [row["offset"] for row in rows[:2]]
    after = asked.number("after", newest[0] if newest else -1)
    before = asked.number("before", newest[1] if len(newest) > 1 else -1)
    sides = [await _side(asked, stream, one) for one in (before, after)]
    pairs = []
    if all(side is not None for side in sides):
        texts = ["" if side is None else side["text"] for side in sides]
        pairs = await asked.scan(compared, *texts)
    data = {
        "stream": stream,
        "key": key,
        "versions": rows,
        "damage": len(found.rows) - len(rows),
        "at_end": found.at_end,
        "next_offset": found.next_offset,
        "before": sides[0],
        "after": sides[1],
        "lines": [pair._asdict() for pair in pairs],
    }
    onward = "" if found.at_end else "?" + urlencode({"key": key, "offset": found.next_offset})
    extra = {
        "onward": onward,
        "from_newest": "" if offset < 0 else "?" + urlencode({"key": key}),
        "offset": "" if offset < 0 else offset,
        "is_same": all(pair.kind != "changed" for pair in pairs),
        "max_lines": MAX_LINES,
    }
    return Shown(f"Versions of {key} in {stream}", data, extra)


def _row(item: Item) -> Row:
    if isinstance(item, Damage):
        return {"kind": "damage", **item._asdict()}
    return {
        "kind": "record",
        "offset": item.offset,
        "timestamp_ns": item.timestamp_ns,
        "subject": item.subject,
        "value_bytes": None if item.value is None else len(item.value),
        "text": content.preview(item.value).text,
    }


async def _side(asked: Asked, stream: str, offset: int) -> Row | None:
    """Return one side of the comparison; None if the record does not exist or may not be read."""
    if offset < 0:
        return None
    try:
        found: Record = await read(asked, stream, offset)
    except (NoRecord, OffsetOutOfRange):
        return None
    shown = await asked.parts.spread.run(content.show, found.value)
    return {
        "offset": found.offset,
        "timestamp_ns": found.timestamp_ns,
        "is_tombstone": found.value is None,
        "view": shown.view,
        "problem": shown.problem,
        "text": shown.text,
        "lines": shown.text.count("\n") + 1,
    }
