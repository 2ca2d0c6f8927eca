"""A value as text, JSON, hexadecimal or msgpack: plain text for a page. Pure.

What it shows came from anybody. Nothing here raises for any input, or costs more than a small
multiple of `MAX_SHOWN_BYTES`.
"""

from __future__ import annotations

import codecs
import json
from typing import Any, NamedTuple

import msgpack

VIEWS = ("auto", "text", "json", "hex", "msgpack")
MAX_SHOWN_BYTES = 64 * 1024
PREVIEW_CHARS = 240
_MAX_DEPTH = 64
_HEX_BYTES = 16 * 1024
_LOOKED_AT = 4096
_MAX_CHARS = 512 * 1024
_CONTROL = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n\r"}
_CONTROL |= {0x7F: 0x2421}
# Whoever reads must see the order in which the characters stand, and all of them.
_CONTROL |= dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F), 0xFFFD)
# Halves of a character, which JSON can spell and UTF-8 cannot carry.
_CONTROL |= dict.fromkeys(range(0xD800, 0xE000), 0xFFFD)


class Content(NamedTuple):
    """`view` is the one it is shown in; `problem` says why that is not the one asked for, or what
    is left out."""

    view: str
    text: str
    problem: str = ""


def show(raw: bytes | None, view: str = "auto") -> Content:
    """The whole value, or as much of it as a page should hold."""
    if raw is None:
        return Content("tombstone", "")
    if view == "json":
        return _json(raw) or _other(raw, "this is no JSON")
    if view == "msgpack":
        return _msgpack(raw) or _other(raw, "this is no msgpack")
    if view == "hex":
        return _hex(raw)
    if view == "text":
        return _text(raw)
    if raw[:1] in b"{[" and (found := _json(raw)) is not None:
        return found
    if is_text(raw):
        return _text(raw)
    # A single small number is hardly meant as msgpack: every byte below 128 is one.
    if raw[0] >= 0x80 and (found := _msgpack(raw)) is not None:
        return found
    return _hex(raw)


def preview(raw: bytes | None, view: str = "auto") -> Content:
    """On one line of a table."""
    if raw is None:
        return Content("tombstone", "")
    found = show(raw[: 8 * 1024] if view in ("auto", "text", "hex") else raw, view)
    if found.view == "hex":
        text = raw[: PREVIEW_CHARS // 3].hex(" ")
        return Content("hex", text + (" …" if len(raw) > PREVIEW_CHARS // 3 else ""))
    # As it was sent, not set out on many lines.
    sent = visible(raw.decode("utf-8", "replace")) if found.view == "json" else found.text
    text = " ".join(sent[: PREVIEW_CHARS * 8].split())
    cut = len(text) > PREVIEW_CHARS or len(raw) > 8 * 1024
    return Content(found.view, text[:PREVIEW_CHARS] + (" …" if cut else ""), found.problem)


def visible(text: str) -> str:
    """Control characters as their pictures; what would turn the direction of writing as U+FFFD."""
    return text.translate(_CONTROL)


def is_text(raw: bytes) -> bool:
    """UTF-8 with hardly any control characters."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        text = decoder.decode(raw[:_LOOKED_AT], final=len(raw) <= _LOOKED_AT)
    except UnicodeDecodeError:
        return False
    control = sum(1 for char in text if ord(char) in _CONTROL)
    return control * 20 <= len(text)


def as_key(raw: bytes | None) -> str | None:
    """Text where it is text, else `hex:...`, which the filter for keys understands."""
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


def _json(raw: bytes) -> Content | None:
    if len(raw) > MAX_SHOWN_BYTES or _is_deep(raw, b"[{"):
        return None
    try:
        value = json.loads(raw)
        text = json.dumps(value, indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    return Content("json", visible(text[:_MAX_CHARS]), _long(text))


def _is_deep(raw: bytes, opening: bytes) -> bool:
    """Deeper than anybody reads: indented, each line of it would be as long as it is deep."""
    depth = deepest = 0
    for byte in raw:
        if byte in opening:
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
    return deepest > _MAX_DEPTH


def _msgpack(raw: bytes) -> Content | None:
    if len(raw) > MAX_SHOWN_BYTES:
        return None
    most = len(raw)
    try:
        value = msgpack.unpackb(
            raw,
            raw=True,
            strict_map_key=False,
            timestamp=0,
            max_array_len=most,
            max_map_len=most,
            object_pairs_hook=_Pairs,
        )
        text = _said(value, 0)
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException):
        return None
    return Content("msgpack", visible(text[:_MAX_CHARS]), _long(text))


class _Pairs(list[Any]):
    """A map whose keys may be anything, also twice the same."""


def _said(value: Any, depth: int) -> str:
    """Like JSON, with `b"..."` for bytes that are no text. Raises ValueError when too deep."""
    if depth > _MAX_DEPTH:
        raise ValueError("too deep")
    inside, outside = "  " * (depth + 1), "  " * depth
    if isinstance(value, _Pairs):
        if not value:
            return "{}"
        items = [f"{inside}{_said(k, depth + 1)}: {_said(v, depth + 1)}" for k, v in value]
        return "{\n" + ",\n".join(items) + f"\n{outside}}}"
    if isinstance(value, list):
        if not value:
            return "[]"
        items = [inside + _said(one, depth + 1) for one in value]
        return "[\n" + ",\n".join(items) + f"\n{outside}]"
    if isinstance(value, bytes):
        if not is_text(value):
            return f'b"{value.hex()}"'
        return json.dumps(value.decode("utf-8", "replace"), ensure_ascii=False)
    if isinstance(value, msgpack.ExtType):
        return f'ext({value.code}, b"{value.data.hex()}")'
    if isinstance(value, msgpack.Timestamp):
        return f"timestamp({value.seconds}.{value.nanoseconds:09d})"
    return json.dumps(value)


def _other(raw: bytes, problem: str) -> Content:
    found = _text(raw) if is_text(raw) else _hex(raw)
    if len(raw) > MAX_SHOWN_BYTES:
        problem = f"larger than {MAX_SHOWN_BYTES // 1024} KiB"
    return Content(found.view, found.text, "; ".join(filter(None, (problem, found.problem))))


def _cut(raw: bytes, shown: int) -> str:
    return f"the first {shown:,} of {len(raw):,} bytes" if len(raw) > shown else ""


def _long(text: str) -> str:
    return f"the first {_MAX_CHARS:,} characters" if len(text) > _MAX_CHARS else ""
