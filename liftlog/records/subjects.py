"""Subjects are bytes on NATS and text here. Subjects that are not UTF-8 are escaped, reversibly.

In an escaped entry every byte that is not part of valid UTF-8, and the backslash itself,
is written as `\\xNN`. Entries that need no escape are stored as they are, so a backslash
in ordinary text keeps its meaning: the per-entry flag of the dictionary tells them apart.
"""

from __future__ import annotations

import re

_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")


def escape_subject(raw: bytes) -> str:
    """Readable, reversible text for a subject that is not UTF-8."""
    return raw.replace(b"\\", b"\\x5c").decode("utf-8", "backslashreplace")


def unescape_subject(text: str) -> bytes:
    """The bytes that were passed to `escape_subject`."""
    out = bytearray()
    end = 0
    for match in _ESCAPE.finditer(text):
        out += text[end : match.start()].encode()
        out.append(int(match[1], 16))
        end = match.end()
    return bytes(out + text[end:].encode())
