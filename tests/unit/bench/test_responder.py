"""The ceiling's responder acks each message once, however its bytes arrive."""

from __future__ import annotations

import pytest
from bench.liftbench.responder import Failed, Responder

# Payloads of eight bytes, of which some look like what the responder looks for.
PAYLOADS = [b"12345678", b"PING\r\nab", b"\r\n\r\n\r\n\r\n", b"MSG s 1 ", b" a 8\r\nxy"]


def message(reply: bytes, payload: bytes = b"12345678") -> bytes:
    return b"MSG s 1 %b %d\r\n%b\r\n" % (reply, len(payload), payload)


def ack(reply: bytes, number: int) -> bytes:
    body = b'{"stream":"S","seq":%d}' % number
    return b"PUB %b %d\r\n%b\r\n" % (reply, len(body), body)


def messages_and_acks(count: int) -> tuple[bytes, bytes]:
    replies = [b"_INBOX.a.%d" % n for n in range(count)]
    received = b"".join(
        message(reply, PAYLOADS[n % len(PAYLOADS)]) for n, reply in enumerate(replies)
    )
    return received, b"".join(ack(reply, n) for n, reply in enumerate(replies, 1))


def responder() -> Responder:
    return Responder("s", "S", payload_bytes=8)


def test_the_acks_are_those_of_liftlog() -> None:
    from liftlog.sequencing.acks import AckFormat

    received, acks = messages_and_acks(12)
    replies = [b"_INBOX.a.%d" % n for n in range(12)]
    ours = AckFormat("S", "fsync").commands(replies, 1)
    assert responder().receive(received) == acks == ours


def test_numbers_grow_by_digits_within_and_between_chunks() -> None:
    received, acks = messages_and_acks(1203)
    whole = responder()
    assert whole.receive(received) == acks
    assert whole.acked == 1203
    assert whole.receive(message(b"r")) == ack(b"r", 1204)


def test_chunks_cut_at_any_two_bytes() -> None:
    received, acks = messages_and_acks(len(PAYLOADS))
    received = b"PING\r\n" + received + b"PING\r\n" + message(b"last")
    acks += ack(b"last", len(PAYLOADS) + 1)
    for first in range(len(received)):
        for second in range(first, len(received), 7):
            one = responder()
            pieces = received[:first], received[first:second], received[second:]
            sent = b"".join(map(one.receive, pieces))
            assert sent.replace(b"PONG\r\n", b"") == acks, (first, second)
            assert sent.count(b"PONG\r\n") == 2
            assert one.acked == len(PAYLOADS) + 1


def test_single_bytes() -> None:
    received, acks = messages_and_acks(30)
    one = responder()
    assert b"".join(one.receive(received[n : n + 1]) for n in range(len(received))) == acks


def test_an_unfinished_message_is_not_acked() -> None:
    received = message(b"r")
    for cut in range(len(received)):
        one = responder()
        assert one.receive(received[:cut]) == b""
        assert one.acked == 0


def test_lines_of_the_server_need_no_answer_but_ping() -> None:
    lines = b'INFO {"a":"b c"}\r\nPONG\r\n+OK\r\nPING\r\n'
    assert responder().receive(lines) == b"PONG\r\n"
    assert responder().receive(lines + message(b"r") + lines) == ack(b"r", 1) + b"PONG\r\n" * 2


@pytest.mark.parametrize(
    "received",
    [
        b"-ERR 'Authorization Violation'\r\n",
        b"MSG s 1 8\r\n12345678\r\n",  # asks for no ack
        b"MSG other 1 r 8\r\n12345678\r\n",
        message(b"r", b"123456789"),
        b"MSG s 1 r 8\r\n1234567890\r\n",
        b"HMSG s 1 r 12 20\r\n",
    ],
)
def test_anything_else_voids_the_run(received: bytes) -> None:
    with pytest.raises(Failed, match="not what the benchmark publishes"):
        responder().receive(received)
    with pytest.raises(Failed, match="not what the benchmark publishes"):
        responder().receive(received + message(b"r"))
