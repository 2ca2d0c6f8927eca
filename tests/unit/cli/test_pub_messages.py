"""What `pub` publishes, and what an answer to it means."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import envelope
from liftlog.cli.acks import Result, judge_answer
from liftlog.cli.problems import Problem
from liftlog.cli.pub_messages import LineSplitter, Template


def test_a_plain_message_has_no_headers() -> None:
    assert Template("a").outgoing(b"x") == ("a", b"x", None)


def test_key_and_id_become_headers() -> None:
    template = Template("a", key="k", message_id="i", headers=[("Trace", "1")])
    message = template.outgoing(b"x")
    assert message.headers == {"Trace": "1", "Liftlog-Key": "k", "Nats-Msg-Id": "i"}
    assert message.payload == b"x"


def test_a_tombstone() -> None:
    message = Template("a", key="k").outgoing(None)
    assert message.payload == b""
    assert message.headers == {"Liftlog-Key": "k", "Liftlog-Tombstone": "true"}


def test_an_envelope_holds_it_all() -> None:
    template = Template("a", "k", "i", [("Trace", "1")], use_envelope=True)
    message = template.outgoing(b"x")
    assert message.headers is None
    found = envelope.decode(message.payload)
    assert found is not None
    assert (found.value, found.key, found.message_id) == (b"x", b"k", "i")
    assert dict(found.headers) == {"Trace": "1"}
    deleted = envelope.decode(template.outgoing(None).payload)
    assert deleted is not None
    assert deleted.is_tombstone


def test_what_does_not_fit_an_envelope_is_said() -> None:
    with pytest.raises(Problem, match="does not fit an envelope"):
        Template("a", key="k" * 70_000, use_envelope=True).outgoing(b"x")


def test_numbers_are_filled_in_only_when_there_are_several() -> None:
    template = Template("a", key="k{n}", message_id="i{n}")
    (single,) = template.repeated(b"{n}", 1)
    assert single.payload == b"{n}"
    messages = list(template.repeated(b"m {n}", 3))
    assert [message.payload for message in messages] == [b"m 1", b"m 2", b"m 3"]
    assert messages[2].headers == {"Liftlog-Key": "k3", "Nats-Msg-Id": "i3"}


@given(st.binary(), st.lists(st.integers(0, 40), max_size=8))
def test_lines_do_not_depend_on_how_they_come_in(data: bytes, cuts: list[int]) -> None:
    splitter = LineSplitter()
    found: list[bytes] = []
    position = 0
    for size in cuts:
        found += splitter.feed(data[position : position + size])
        position += size
    found += splitter.feed(data[position:])
    found += splitter.rest()
    whole = data.split(b"\n")
    if not whole[-1]:
        whole.pop()
    assert found == [line.removesuffix(b"\r") for line in whole]


def answer(document: object, status: str | None = None) -> Result:
    return judge_answer("orders.new", json.dumps(document).encode(), status)


def test_an_ack() -> None:
    result = answer({"stream": "orders", "seq": 3})
    assert result.ack == {"stream": "orders", "seq": 3}
    assert result.to_line() == "orders 3"
    assert result.to_object() == {"subject": "orders.new", "stream": "orders", "seq": 3}


def test_an_ack_with_more_to_say() -> None:
    document = {"stream": "orders", "seq": 3, "duplicate": True, "durability": "os"}
    assert answer(document).to_line() == "orders 3 duplicate durability=os"


def test_a_refusal_names_stream_reason_and_code() -> None:
    refusal = {"code": 400, "err_code": 10071, "description": "wrong last sequence: 2"}
    result = answer({"error": refusal, "stream": "orders", "seq": 0})
    assert result.ack is None
    assert result.problem == "orders refused it: wrong last sequence: 2 (error 10071)"
    assert not result.final


def test_nobody_listens() -> None:
    result = judge_answer("orders.new", b"", "503")
    assert result.final
    assert "nobody listens on orders.new" in result.problem


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"pong",
        b"\xff",
        b"[" * 100_000,
        b"{}",
        b"[]",
        b'{"stream": 1, "seq": 1}',
        b'{"stream": "s", "seq": 0}',
        b'{"stream": "s", "seq": true}',
    ],
)
def test_what_no_stream_says_is_no_ack(payload: bytes) -> None:
    result = judge_answer("orders.new", payload, None)
    assert result.ack is None
    assert "no stream" in result.problem
