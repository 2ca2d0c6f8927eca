"""An answer on a reply subject is an ack, a refusal, NATS's "no responders", or not liftlog's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftlog.client.publishing.delivery import NO_RESPONDERS, Ack, Refusal, read_answer
from liftlog.sequencing.acks import AckFormat
from liftlog.sequencing.refusals import PAUSED, TOO_LARGE, refusal_body


def test_what_the_daemon_says_is_understood() -> None:
    assert read_answer(AckFormat("s", "fsync").body(7)) == Ack("s", 7)
    assert read_answer(AckFormat("s", "os").body(7, duplicate=True)) == Ack("s", 7, True, "os")
    refusal = read_answer(refusal_body("s", TOO_LARGE))
    assert refusal == Refusal("s", 400, 10054, TOO_LARGE.description)
    assert isinstance(refusal, Refusal)
    assert not refusal.retriable
    paused = read_answer(refusal_body("s", PAUSED, "c1"))
    assert isinstance(paused, Refusal)
    assert paused.retriable


def test_nobody_listens() -> None:
    assert read_answer(b"", "503") is NO_RESPONDERS
    assert read_answer(b'{"stream":"s","seq":1}', "100") == Ack("s", 1)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"+OK",
        b"\xff",
        b"[]",
        b"7",
        b"{}",
        b"[" * 100_000,
        b"9" * 10_000,
        b'{"stream":"s"}',
        b'{"stream":"s","seq":0}',
        b'{"stream":"s","seq":-1}',
        b'{"stream":"s","seq":true}',
        b'{"stream":"s","seq":1.0}',
        b'{"stream":1,"seq":1}',
        b'{"error":{}}',
        b'{"error":{"code":"400"},"stream":"s"}',
        b'{"error":{"code":400,"err_code":null},"stream":"s"}',
    ],
)
def test_a_service_that_replies_is_no_stream(payload: bytes) -> None:
    assert read_answer(payload) is None


@given(st.binary(max_size=60), st.sampled_from([None, "503", "100", ""]))
def test_no_bytes_raise(payload: bytes, status: str | None) -> None:
    read_answer(payload, status)
    read_answer(b'{"error":' + payload + b',"stream":"s","seq":1}', status)
