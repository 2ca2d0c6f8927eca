"""Commits as plain messages: what is understood, what is answered, and to whom."""

import asyncio
import json
from typing import Any

import pytest

from liftlog.errors import CheckpointMoved, InvalidArgument, StreamNotFound
from liftlog.names import check_stream_name
from liftlog.sequencing import Destinations, MessageRun
from liftlog.server.checkpoints.over_nats import CheckpointIntake, parse_payload

PREFIX = "liftlog.main.offsets"


@pytest.mark.parametrize(
    ("payload", "wish"),
    [
        (b"1", {"offset": 1}),
        (b"0", {"offset": 0}),  # refused where it is judged
        (b"9223372036854775807", {"offset": 2**63 - 1}),
        (b'{"offset": 7}', {"offset": 7}),
        (b' {"offset": 7, "expected": null, "colour": 1} ', {"offset": 7}),
        (
            b'{"offset":7,"expected":0,"epoch":2,"metadata":"m","incarnation":"i"}',
            {"offset": 7, "expected": 0, "epoch": 2, "metadata": "m", "incarnation": "i"},
        ),
    ],
)
def test_payloads(payload: bytes, wish: dict[str, Any]) -> None:
    assert parse_payload(payload) == wish


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"-1",
        b"+1",
        b"1.0",
        b" 1",
        b"9223372036854775808",
        b"9" * 5000,
        b"[" * 30_000,
        b'{"offset":' + b"9" * 5000 + b"}",
        b"{}",
        b"[]",
        b"null",
        b'{"offset":"7"}',
        b'{"offset":true}',
        b'{"offset":-7}',
        b'{"offset":7,"expected":-1}',
        b'{"offset":7,"epoch":4294967296}',
        b'{"offset":7,"metadata":1}',
        b'{"offset":7,"metadata":"\\ud800"}',  # not UTF-8: no answer could carry it
        b'{"offset":7,"incarnation":"\\udfff"}',
        b'{"offset":7,"metadata":"' + b"x" * 4097 + b'"}',
        b'{"offset":7,"metadata":"' + b"x" * 40_000 + b'"}',
        "\u0661".encode(),
        b"\xff",
    ],
)
def test_what_is_no_payload(payload: bytes) -> None:
    with pytest.raises(InvalidArgument):
        parse_payload(payload)


class Committing:
    """Knows one stream; `told` is kept for the test to call."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.wishes: list[tuple[str, str, int]] = []

    def commit(self, consumer: str, stream: str, offset: int, told: Any, **rest: Any) -> None:
        check_stream_name(consumer)
        if stream != "orders":
            raise StreamNotFound("no such stream")
        self.wishes.append((consumer, stream, offset))
        self.told.append(told)


def intake() -> tuple[Committing, CheckpointIntake, list[bytes]]:
    committing, sent = Committing(), list[bytes]()
    subjects = Destinations(["recorded.>"], [])
    made = CheckpointIntake(lambda: committing, PREFIX, sent.append, lambda: subjects)  # type: ignore[arg-type]
    return committing, made, sent


def run(subject: bytes, payload: bytes, reply: bytes = b"_INBOX.1") -> MessageRun:
    return MessageRun([subject], [reply], [payload])


def answer(sent: list[bytes]) -> dict[str, Any]:
    (command,) = sent
    head, body = command.split(b"\r\n")[:2]
    assert head == b"PUB _INBOX.1 %d" % len(body)
    found: dict[str, Any] = json.loads(body)
    return found


def test_a_reply_is_sent_only_once_it_is_durable() -> None:
    committing, nats, sent = intake()
    nats.receive(run(b"liftlog.main.offsets.orders.billing", b"42"))
    assert committing.wishes == [("billing", "orders", 42)]
    assert not sent
    committing.told[0](None)
    assert answer(sent) == {"stream": "orders", "consumer": "billing", "offset": 42}


def test_errors_are_answered() -> None:
    committing, nats, sent = intake()
    nats.receive(run(b"liftlog.main.offsets.other.billing", b"42"))
    assert answer(sent)["error"]["name"] == "STREAM_NOT_FOUND"
    sent.clear()
    nats.receive(run(b"liftlog.main.offsets.orders.billing", b'{"offset":3,"expected":1}'))
    committing.told[0](CheckpointMoved("it is 2", offset=2))
    assert answer(sent)["error"] == {
        "code": 22,
        "name": "CHECKPOINT_MOVED",
        "description": "it is 2",
        "offset": 2,
    }


@pytest.mark.parametrize(
    "subject",
    [
        b"liftlog.main.offsets.orders",
        b"liftlog.main.offsets.orders.a.b",
        b"liftlog.main.offsets.orders.$x",
        b"liftlog.main.offsets.orders.\xff",
        b"liftlog.main.offsets.orders._x",
    ],
)
def test_subjects_that_name_no_consumer(subject: bytes) -> None:
    committing, nats, sent = intake()
    nats.receive(run(subject, b"42"))
    assert not committing.wishes
    assert answer(sent)["error"]["name"] in ("INVALID_ARGUMENT", "STREAM_NOT_FOUND")


def test_an_answer_repeats_little_of_what_was_sent() -> None:
    _, nats, sent = intake()
    for names in (
        b"orders." + b"c" * 60_000,
        b"o" * 60_000 + b".billing",
        b"\x01" * 60_000 + b".b",
    ):
        nats.receive(run(b"liftlog.main.offsets." + names, b"42"))
        assert len(json.dumps(answer(sent))) < 4000
        sent.clear()


@pytest.mark.parametrize(
    "reply", [b"", b"recorded.x", b"$JS.API.STREAM.PURGE.X", b"liftlog.a", b">"]
)
def test_no_answer_goes_where_none_may(reply: bytes) -> None:
    committing, nats, sent = intake()
    nats.receive(run(b"liftlog.main.offsets.orders.billing", b"42", reply))
    committing.told[0](None)
    nats.receive(run(b"liftlog.main.offsets.other.billing", b"42", reply))
    assert not sent


def test_refusals_that_nobody_hears_of_do_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, nats, _ = intake()
    for _ in range(1000):
        nats.receive(run(b"liftlog.main.offsets.other.billing", b"42", b""))
    assert len(caplog.records) == 10


async def test_thousands_of_commits_are_taken_in_slices() -> None:
    _, nats, sent = intake()
    count = 5000
    many = [b"liftlog.main.offsets.other.billing"] * count
    replies = [b"_INBOX.%d" % n for n in range(count)]
    nats.receive(MessageRun(many, replies, [b"42"] * count, [b""] * count))
    turns = 0
    while (answered := b"".join(sent).count(b"STREAM_NOT_FOUND")) < count:
        assert answered > turns, "each turn of the loop takes some"
        turns += 1
        await asyncio.sleep(0)
    assert turns > 5
    assert len(sent) == turns + 1, "the answers of a turn are sent together"


async def test_no_more_commits_wait_than_there_is_room_for() -> None:
    _, nats, sent = intake()
    count = 3000
    large = b'{"offset": 1, "metadata": "%b"}' % (b"x" * 20_000)  # refused: it is too long
    subjects = [b"liftlog.main.offsets.orders.billing"] * count
    nats.receive(MessageRun(subjects, [b"_INBOX.1"] * count, [large] * count, [b""] * count))
    answered, now = 0, -1
    while now != answered:
        answered = now
        for _ in range(100):
            await asyncio.sleep(0)
        now = b"".join(sent).count(b"INVALID_ARGUMENT")
    assert 700 < answered < 900
    sent.clear()
    nats.receive(run(b"liftlog.main.offsets.other.billing", b"42"))
    assert answer(sent)["error"]["name"] == "STREAM_NOT_FOUND"
