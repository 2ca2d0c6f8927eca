"""Shows a value as text, JSON, hexadecimal or msgpack, converted to plain text for a page. Pure.

The values are not trusted: no function of this module raises for any input. The functions run on
the event loop. A preview takes at most about 2 ms of processor time, an expanded value 4 ms, a
whole value 20 ms.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from liftlog.server.web.outline import (
    MAX_CHARS,
    MAX_DEPTH,
    MAX_LINES,
    Outline,
    TooDeep,
    outline_json,
    outline_msgpack,
)

VIEWS = ("auto", "text", "json", "hex", "msgpack")
MAX_SHOWN_BYTES = 64 * 1024
PREVIEW_CHARS = 240
_HEX_BYTES = 16 * 1024
LOOKED_AT_BYTES = 4096
"""Number of bytes at the start of a value that are examined. They determine whether the value is
shown as text."""
_PREVIEWED_BYTES = 8 * 1024

_CONTROL = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n\r"}
_CONTROL |= {0x7F: 0x2421, **dict.fromkeys(range(0x80, 0xA0), 0xFFFD)}
# Invisible characters, and characters that change the writing direction.
_CONTROL |= dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F), 0xFFFD)
_CONTROL |= dict.fromkeys((0x061C, 0x2028, 0x2029), 0xFFFD)
# Surrogates, which JSON can write and UTF-8 cannot encode.
_CONTROL |= dict.fromkeys(range(0xD800, 0xE000), 0xFFFD)
_CONTROLS = re.compile("[" + "".join(map(re.escape, map(chr, _CONTROL))) + "]")

_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
_NAMES = {"json": "JSON", "msgpack": "msgpack"}


class Content(NamedTuple):
    """A value as a page shows it. `view` is the view in use. `problem` is the reason why `view`
    differs from the requested view, or the size of the part that is left out."""

    view: str
    text: str
    problem: str = ""


class _Bounds(NamedTuple):
    raw_bytes: int | None
    """Number of bytes that the text and hexadecimal views read; None stands for the number of bytes
    that a page shows."""
    chars: int
    lines: int


_WHOLE = _Bounds(None, MAX_CHARS, MAX_LINES)
_GLANCE = _Bounds(PREVIEW_CHARS * 8, PREVIEW_CHARS * 8, PREVIEW_CHARS)
_EXPANDED = _Bounds(4096, 8192, 250)


def show(raw: bytes | None, view: str = "auto") -> Content:
    """Show the whole value, or its beginning if it does not fit one page."""
    return Content("tombstone", "") if raw is None else _shown(raw, view, _WHOLE)


def expanded(raw: bytes | None, view: str = "auto") -> Content:
    """Show the formatted beginning of a value, below the line of a table."""
    if raw is None:
        return Content("tombstone", "")
    found = _shown(raw, view, _EXPANDED)
    if found.view in ("text", "hex") and not found.problem:
        return found._replace(problem=_cut(raw, _EXPANDED.raw_bytes or len(raw)))
    return found


def preview(raw: bytes | None, view: str = "auto") -> Content:
    """Show the beginning of a value on one line of a table."""
    if raw is None:
        return Content("tombstone", "")
    found = _shown(raw, view, _GLANCE)
    if found.view == "hex":
        text = raw[: PREVIEW_CHARS // 3].hex(" ")
        cut = " …" if len(raw) > PREVIEW_CHARS // 3 else ""
        return found._replace(text=text + cut)
    # JSON in the form in which it was sent, not indented.
    sent = _text(raw[: _GLANCE.raw_bytes]).text if found.view == "json" else found.text
    text = " ".join(sent.split())
    is_cut = len(text) > PREVIEW_CHARS or len(raw) > _PREVIEWED_BYTES
    return found._replace(text=text[:PREVIEW_CHARS] + (" …" if is_cut else ""))


def _shown(raw: bytes, view: str, bounds: _Bounds) -> Content:
    problem = ""
    # The text is shown in the form in which it was sent. Parsing it would use most of the time of a
    # page with 250 rows.
    is_parsed = bounds is _WHOLE or len(raw) <= _PREVIEWED_BYTES
    if is_parsed and (view == "json" or (view == "auto" and raw[:1] in (b"{", b"["))):
        found = _outlined("json", outline_json, raw, bounds)
        if isinstance(found, Content):
            return found
        problem = found
    # Every byte below 128 is a valid number in msgpack, but is rarely meant as one.
    if view == "msgpack" or (view == "auto" and raw[:1] >= b"\x80" and not is_text(raw)):
        found = _outlined("msgpack", partial(outline_msgpack, is_text=is_text), raw, bounds)
        if isinstance(found, Content):
            return found
        problem = found
    if view == "auto" and not problem.startswith(_TOO_DEEP):
        problem = ""  # msgpack was only a guess
    looked_at = raw[: bounds.raw_bytes]
    as_text = view == "text" or (view != "hex" and is_text(raw))
    other = _text(looked_at) if as_text else _hex(looked_at)
    return other._replace(problem="; ".join(filter(None, (problem, other.problem))))


def visible(text: str) -> str:
    """Replace control characters by visible symbols, and characters that change the writing
    direction by U+FFFD."""
    return text.translate(_CONTROL)


def is_text(raw: bytes) -> bool:
    """Return True if `raw` is valid UTF-8 with hardly any control characters."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        text = decoder.decode(raw[:LOOKED_AT_BYTES], final=len(raw) <= LOOKED_AT_BYTES)
    except UnicodeDecodeError:
        return False
    return len(_CONTROLS.findall(text)) * 20 <= len(text)


def as_key(raw: bytes | None) -> str | None:
    """Return the key as text if it is valid UTF-8, and as `hex:...` otherwise. The filter for keys
    accepts both forms."""
    if raw is None:
        return None
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return "hex:" + raw.hex()
    return "hex:" + raw.hex() if text.startswith("hex:") else text


def _text(raw: bytes) -> Content:
    shown = raw[:MAX_SHOWN_BYTES]
    text = shown.decode("utf-8", "replace")
    return Content("text", visible(text), _cut(raw, MAX_SHOWN_BYTES))


def _hex(raw: bytes) -> Content:
    lines = []
    for position in range(0, min(len(raw), _HEX_BYTES), 16):
        row = raw[position : position + 16]
        letters = "".join(chr(byte) if 0x20 <= byte < 0x7F else "·" for byte in row)
        lines.append(f"{position:08x}  {row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}  {letters}")
    return Content("hex", "\n".join(lines), _cut(raw, _HEX_BYTES))


def _outlined(
    view: str, outline: Callable[..., Outline], raw: bytes, bounds: _Bounds
) -> Content | str:
    """Return the value as an outline; if the value has no outline, return the reason as a text."""
    if len(raw) > MAX_SHOWN_BYTES:
        return f"larger than {MAX_SHOWN_BYTES // 1024} KiB"
    try:
        text, is_whole = outline(raw, max_chars=bounds.chars, max_lines=bounds.lines)
    except TooDeep:
        return _TOO_DEEP
    except ValueError:
        return f"this is not {_NAMES[view]}"
    problem = "" if is_whole or bounds is _GLANCE else f"the first {len(text):,} characters"
    return Content(view, visible(text), problem)


def _cut(raw: bytes, shown: int) -> str:
    return f"the first {shown:,} of {len(raw):,} bytes" if len(raw) > shown else ""
