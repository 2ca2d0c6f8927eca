"""Escapes untrusted bytes and text so that they are safe for a terminal."""

from __future__ import annotations

import re
from functools import cache

from liftlog.times import show_time as show_time

# Control characters could move the cursor or change the terminal's title. Bidirectional characters
# could make a line look different from its content.
_UNSAFE = [*range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, 0x2028, 0x2029]
_UNSAFE += (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_ESCAPES = {code: (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}") for code in _UNSAFE}
_ESCAPES |= {0x09: "\\t", 0x0A: "\\n", 0x0D: "\\r"}
_ESCAPES |= {code: f"\\u{code:04x}" for code in range(0xD800, 0xE000)}
# For JSON and quoted YAML, where characters below 0x20 are escaped or part of the layout.
_IN_QUOTES = {code: f"\\u{code:04x}" for code in (*_UNSAFE, *range(0xD800, 0xE000)) if code >= 0x7F}
_KEEPING_NEWLINES = {code: text for code, text in _ESCAPES.items() if code != 0x0A}

_BINARY_HEAD_BYTES = 16


def printable(text: str, *, keep_newlines: bool = False) -> str:
    """Return `text` with every character escaped that a terminal would interpret."""
    if text.isprintable():  # the common case; False also for some harmless text
        return text
    return text.translate(_KEEPING_NEWLINES if keep_newlines else _ESCAPES)


def needs_quotes(text: str) -> bool:
    """Return True if `escaped_in_quotes` would change the text."""
    if text.isascii():  # the common case, which is fast
        return "\x7f" in text
    return _to_quote().search(text) is not None


@cache
def _to_quote() -> re.Pattern[str]:
    return re.compile(f"[{''.join(map(chr, _IN_QUOTES))}]")


def escaped_in_quotes(text: str) -> str:
    """Escape JSON, or YAML in which each scalar that `needs_quotes` is in double quotes. The values
    stay the same, but the text has no characters that a terminal would interpret."""
    return text.translate(_IN_QUOTES) if needs_quotes(text) else text


def show_bytes(raw: bytes | None, *, null: str = "") -> str:
    """Return a key or value for people: its text, or its size and its first bytes in hex."""
    if raw is None:
        return null
    try:
        return printable(raw.decode())
    except UnicodeDecodeError:
        head = raw[:_BINARY_HEAD_BYTES].hex()
        more = "..." if len(raw) > _BINARY_HEAD_BYTES else ""
        return f"<{len(raw)} bytes {head}{more}>"


def show_size(size_bytes: int) -> str:
    """Return the size with a binary unit and at most one decimal."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def shorten(text: str, width: int | None) -> str:
    """Shorten `text` to at most `width` characters; None leaves it unchanged."""
    if width is None or len(text) <= width:
        return text
    return text[: max(width - 1, 0)] + "…"


def plural(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def show_span(seconds: float) -> str:
    """Return a duration with its two largest units."""
    minutes, whole = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (whole, "s")]
    shown = [f"{count}{unit}" for count, unit in parts if count]
    return " ".join(shown[:2]) or "0s"
