"""The text of a page that cannot show the requested object. Pure.

Messages and hints of errors are written for programs and for a shell. This module rewrites them for
the visitor of a page. If a hint names a command, and a page shows the same information, a link to
that page replaces the command.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from liftlog.errors import CorruptRange, Forbidden, OffsetOutOfRange, StreamNotFound
from liftlog.server.web import formats

_RANGE = re.compile(r"\bthe records \[(\d{1,19}), (\d{1,19})\)( are)?")
_NEEDS_NO_HINT = (StreamNotFound.name, CorruptRange.name)
"""Errors for which a link replaces the hint."""
_PAGES = {"`liftlog cluster status`": ("/ui/cluster", "Cluster")}
"""Commands, each with the page that shows the same information."""


class Trouble(NamedTuple):
    """The text of a page that shows an error. `message` and `hint` are sentences in which backticks
    mark commands; `links` are pairs of an address and a text."""

    name: str
    message: str
    hint: str = ""
    links: tuple[tuple[str, str], ...] = ()


def worded(error: Mapping[str, Any], asked: Mapping[str, str]) -> Trouble:
    """Convert an error to a text for the page. `error` is the error as JSON. `asked` contains the
    parts of the path. They are not trusted."""
    name, details = error["name"], error["details"]
    message, hint = in_words(error["message"]), error["hint"]
    links: list[tuple[str, str]] = []
    if name == OffsetOutOfRange.name and "log_start_offset" in details:
        start, end = int(details["log_start_offset"]), int(details["log_end_offset"])
        plural = "s" if end - start > 1 else ""
        hint = f"its records have the offset{plural} {_range(start, end)}" if end > start else ""
        message = _not_there(asked, start) or message
        if "stream" in asked:
            page = f"/ui/streams/{asked['stream']}/records"
            links = [(f"{page}?order=oldest", "Oldest records"), (page, "Newest records")]
    elif details.get("next_offset"):
        following = int(details["next_offset"])
        links = [(f"{following}", f"Continue at offset {formats.count(following)}")]
    for command, link in _PAGES.items():
        if command in hint:
            hint = "; ".join(part for part in hint.split("; ") if command not in part)
            links.append(link)
    if name == Forbidden.name:
        links.append(("/ui/access", "What you may do"))
    if name in _NEEDS_NO_HINT:
        hint = ""
    return Trouble(name, _sentence(message), _sentence(hint), tuple(links))


def in_words(message: str) -> str:
    """Replace ranges of offsets by words: `the records [2, 4) are lost` becomes `records 2 to 3 are
    lost`."""
    return _RANGE.sub(_said, message)


def _said(found: re.Match[str]) -> str:
    first, end, verb = int(found[1]), int(found[2]), found[3] or ""
    if end - first <= 1:
        return f"record {formats.count(first)}{' is' if verb else ''}"
    return f"records {_range(first, end)}{verb}"


def _range(first: int, end: int) -> str:
    said = formats.count(first)
    return said if end - first == 1 else f"{said} to {formats.count(end - 1)}"


def _not_there(asked: Mapping[str, str], start: int) -> str:
    """Return a sentence about the missing record; empty if the path names no offset."""
    offset = asked.get("offset", "")
    if not (offset.isascii() and offset.isdecimal() and "stream" in asked):
        return ""
    said = formats.count(int(offset))
    if int(offset) < start:
        return f"record {said} of {asked['stream']} has been deleted"
    return f"there is no record {said} in {asked['stream']} yet"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text and not text.endswith(".") else text
