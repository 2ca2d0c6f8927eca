"""The protocol between leaf nodes: parsed by buffers, however they are cut; and written."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftlog.errors import NatsUnavailable
from liftlog.sequencing.destinations import own_subject
from liftlog.server.jetstream_api.consumers.leaf_frames import LeafParser, leaf_message

INPUT = (
    b"LS+ $LDS.abc\r\nPING\r\nLS+ _INBOX.one.*\r\nLS+ work group 3\r\nLS- work group\r\n"
    b"LMSG $JS.FC.s.c.1 0\r\n\r\n"
    b"LMSG $JS.FC.s.c.2 reply 12\r\nLS+ forged\r\n\r\n"
    b"HMSG $JS.FC.s.c.3 + reply group 12 14\r\nNATS/1.0\r\n\r\nOK\r\n"
    b"LMSG $JS.FC.s.c.4 | group 4\r\nPING\r\n"
    b'INFO {"a": 1}\r\nPONG\r\nLS- _INBOX.one.*\r\n'
)
EVENTS = [
    ("added", b"$LDS.abc", b""),
    ("pinged",),
    ("added", b"_INBOX.one.*", b""),
    ("added", b"work", b"group"),
    ("removed", b"work", b"group"),
    *[("message", b"$JS.FC.s.c.%d" % number) for number in (1, 2, 3, 4)],
    ("ponged",),
    ("removed", b"_INBOX.one.*", b""),
]


class Noted:
    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []

    def interest_added(self, subject: bytes, queue: bytes) -> None:
        self.events.append(("added", subject, queue))

    def interest_removed(self, subject: bytes, queue: bytes) -> None:
        self.events.append(("removed", subject, queue))

    def message(self, subject: bytes) -> None:
        self.events.append(("message", subject))

    def pinged(self) -> None:
        self.events.append(("pinged",))

    def ponged(self) -> None:
        self.events.append(("ponged",))


def events_of(*pieces: bytes) -> list[tuple[object, ...]]:
    noted = Noted()
    parser = LeafParser(noted)
    for piece in pieces:
        parser.feed(piece)
    return noted.events


def test_cut_at_every_byte() -> None:
    assert events_of(INPUT) == EVENTS
    for at in range(len(INPUT) + 1):
        assert events_of(INPUT[:at], INPUT[at:]) == EVENTS
    assert events_of(*[INPUT[at : at + 1] for at in range(len(INPUT))]) == EVENTS


@given(st.lists(st.integers(0, len(INPUT)), max_size=10))
def test_cut_anywhere(cuts: list[int]) -> None:
    ends = [0, *sorted(cuts), len(INPUT)]
    assert events_of(*[INPUT[a:b] for a, b in pairwise(ends)]) == EVENTS


def test_a_payload_is_not_kept() -> None:
    parser = LeafParser(Noted())
    parser.feed(b"LMSG a %d\r\n" % 2**26)
    for _ in range(64):
        parser.feed(bytes(2**20))
    noted = Noted()
    parser.events = noted
    parser.feed(b"\r\nPING\r\n")
    assert noted.events == [("pinged",)]


@pytest.mark.parametrize(
    "line", [b"LMSG a x\r\n", b"LMSG a -1\r\n", b"LMSG a %d\r\n" % 2**40, b"LS+ " + b"x" * 2**19]
)
def test_what_is_not_the_protocol_is_an_error(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"length|invalid literal|too long"):
        events_of(line)


def test_the_reason_of_the_server() -> None:
    with pytest.raises(NatsUnavailable, match=r"^Authorization Violation \("):
        events_of(b"PING\r\n-ERR 'Authorization Violation'\r\n")


@pytest.mark.parametrize(
    ("reply", "headers", "queues", "frame"),
    [
        (b"", b"", b"", b"LMSG to 2\r\nOK\r\n"),
        (b"r", b"", b"", b"LMSG to r 2\r\nOK\r\n"),
        (b"r", b"", b"a b", b"LMSG to + r a b 2\r\nOK\r\n"),
        (b"", b"", b"a", b"LMSG to | a 2\r\nOK\r\n"),
        (b"", b"H\r\n\r\n", b"", b"HMSG to 5 7\r\nH\r\n\r\nOK\r\n"),
        (b"r", b"H\r\n\r\n", b"a", b"HMSG to + r a 5 7\r\nH\r\n\r\nOK\r\n"),
    ],
)
def test_how_a_message_is_written(
    reply: bytes, headers: bytes, queues: bytes, frame: bytes
) -> None:
    assert leaf_message(own_subject(b"to"), reply, headers, b"OK", queues) == frame
