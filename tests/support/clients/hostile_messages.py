"""Generates messages that are legal, but that programs often change by mistake. All tests of paths
that store, read, export, import, copy or dead-letter messages use this generator.

`RawNats` sends the messages without checks. `messages` yields one message of each kind, and then
random messages.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from liftlog.records.message_headers import HeaderLine, build_block

MAX_PAYLOAD = 80 * 1024
"""Setting of nats-server. It is low, so that messages just below the limit are small."""
MAX_HEADER_BYTES = 65_535
"""Maximum size of a header block that JetStream and liftlog store."""


class Hostile(NamedTuple):
    """A message. `tail` is the part of the subject after the stream's prefix. `value` is the
    payload. If `is_tombstone` is true, the record has no value."""

    tail: str
    value: bytes
    lines: Sequence[HeaderLine] = ()
    key: bytes | None = None
    is_tombstone: bool = False
    message_id: str = ""

    @property
    def block(self) -> bytes:
        return build_block(self.all_lines)

    @property
    def all_lines(self) -> list[HeaderLine]:
        """Return all lines. The lines with requests to the stream are between the others."""
        found = list(self.lines)
        if self.key is not None:
            found.insert(len(found) // 2, (b"Liftlog-Key", self.key))
        if self.is_tombstone:
            found.append((b"Liftlog-Tombstone", b"true"))
        if self.message_id:
            found.insert(0, (b"Nats-Msg-Id", self.message_id.encode()))
        return found

    @property
    def is_near_a_limit(self) -> bool:
        """True if the message has no room for the headers that are added to a copy."""
        size = len(self.block)
        return size > MAX_HEADER_BYTES - 2048 or size + len(self.value) > MAX_PAYLOAD - 2048

    @property
    def is_text(self) -> bool:
        """True if a web form or a command line can contain the message: its names are tokens, and
        its values are short single lines of UTF-8."""
        names_and_values = [*self.lines, (b"k", self.key or b"")]
        try:
            return not self.is_near_a_limit and all(
                name.replace(b"-", b"").isalnum()
                and value.decode().isprintable()
                and value.decode() == value.decode().strip()
                for name, value in names_and_values
            )
        except UnicodeDecodeError:
            return False


_TAILS = (
    "a",
    "b.c",
    "ü.é",
    "日本",
    "A",
    "it's",
    '"q"',
    "<b>x",
    "a=b&c",
    "%2F",
    "\\n",
    "-",
    "{{.a}}",
    "a*b.>c",
)
_NAMES = (
    *(b"A", b"A", b"A", b"a", b"Trace", b"TRACE", b"na me", "nä".encode(), b"\xff", b"x\ny"),
    *(b"Status", b"Description", b"Content-Type", b"headers_base64", b"__proto__", b"a.b"),
)
_REPUBLISHED = (
    *(b"Nats-Stream", b"Nats-Subject", b"Nats-Sequence", b"Nats-Last-Sequence", b"Nats-Time-Stamp"),
    *(b"Nats-Num-Pending", b"NATS-MSG-ID", b"Liftlog-Dead-Stream", b"Liftlog-Dead-Error"),
    *(b"Liftlog-Offset", b"liftlog-key", b"Copied-From", b"copied-sequence", b"Copied-Id"),
)
_TEXTS = (
    *(b"", b"1", b"true", b"null", "é".encode(), "\u2028x".encode(), b"x: y", b"a\tb", b"{}"),
    *(
        b"\xff\xfe",
        b"a\nb",
        b"a\rb",
        b"\0",
        b"\0\0x\0\0",
        b"NATS/1.0",
        b"404",
        b"503",
        b'"',
        b"%41",
    ),
    *(b"100 Idle Heartbeat", b"a,b;c=d", b"\xc3", b"v" * 4097, b"=?utf-8?q?=41?="),
)
_VALUES = (
    *(b"", b"x", b"\0", b"tail\0\0\0", b"tail   ", b"  lead", b"\r\n", b"a\r\nb\r\n", b"\n\n"),
    *(b"NATS/1.0\r\n\r\n", b"null", b'"text"', b'{"a":1}', b"\xff\xfe\0\x01", "ü😀".encode()),
    *(b"PUB a 1\r\nx\r\n", b"\xb9\x0e\x43\xb4", b"LLE1", b"\xef\xbb\xbfbom", bytes(range(256))),
)
_KEYS = (b"k", b"K", "ключ".encode(), b"a b", b"x" * 300, b"0", b"null")


def messages(chance: random.Random, count: int) -> Iterator[Hostile]:
    """Yield one message of each kind, and then `count` random messages."""
    yield Hostile("plain", b"value")
    yield Hostile("empty", b"")
    yield Hostile("only.headers", b"", [(b"A", b"1")])
    yield Hostile("repeated", b"v", [(b"A", b"1"), (b"A", b"2"), (b"A", b"1")])
    yield Hostile("apart", b"v", [(b"A", b"1"), (b"B", b"x"), (b"A", b"2"), (b"a", b"3")])
    yield Hostile("empty.values", b"v", [(b"A", b""), (b"A", b"x"), (b"B", b"")])
    yield Hostile("binary", b"\xff\0", [(b"A", b"\xff\xfe"), (b"A", "é".encode())])
    yield Hostile("names", b"v", [(name, b"%d" % at) for at, name in enumerate(_NAMES)])
    yield Hostile("texts", b"v", [(b"T", text) for text in _TEXTS])
    yield Hostile("republished", b"v", [(name, b"7") for name in _REPUBLISHED])
    yield Hostile("key", b"v", [(b"A", b"1"), (b"A", b"2")], key="ключ".encode())
    yield Hostile("key", b"", [(b"A", b"\xff")], key="ключ".encode(), is_tombstone=True)
    yield Hostile("id", b"v", [(b"A", b"1")], message_id="id: é")
    yield Hostile("many", b"v", [(b"H%d" % at, b"%d" % at) for at in range(900)])
    for tail in _TAILS:
        yield Hostile(tail, tail.encode())
    for value in _VALUES:
        yield Hostile("value", value)
    yield from _at_limits()
    for number in range(count):
        yield _random(chance, number)


def _at_limits() -> Iterator[Hostile]:
    for below in (0, 1, 200):
        yield Hostile("limit.payload", b"\0" * (MAX_PAYLOAD - below))
        lines = [(b"A", b"1"), (b"A", b"2")]
        size = len(build_block(lines))
        yield Hostile("limit.both", b" " * (MAX_PAYLOAD - below - size), lines)
        filling = MAX_HEADER_BYTES - below - len(build_block([(b"A", b"1"), (b"L", b"")]))
        yield Hostile("limit.block", b"v", [(b"A", b"1"), (b"L", b"\xff" * filling)])


def _random(chance: random.Random, number: int) -> Hostile:
    names = chance.choices((*_NAMES, *_REPUBLISHED), k=chance.choice((0, 0, 1, 2, 5)))
    key = chance.choice((None, None, *_KEYS))
    is_tombstone = key is not None and chance.random() < 0.2
    return Hostile(
        chance.choice(_TAILS),
        b"" if is_tombstone else _value(chance),
        [(name, _text(chance)) for name in names],
        key,
        is_tombstone,
        f"m-{number}" if chance.random() < 0.2 else "",
    )


def _text(chance: random.Random) -> bytes:
    if chance.random() < 0.7:
        return chance.choice(_TEXTS)
    made = chance.randbytes(chance.randrange(20)).replace(b"\r\n", b"")
    return made.strip(b" \t")


def _value(chance: random.Random) -> bytes:
    return (
        chance.choice(_VALUES)
        if chance.random() < 0.6
        else chance.randbytes(chance.choice((1, 9, 5000)))
    )
