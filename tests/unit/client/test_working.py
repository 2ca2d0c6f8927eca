"""A worker without a connection: its batches, and the messages that it acks and returns."""

from __future__ import annotations

import pytest

from liftlog.client.working.deliveries import Held, WorkBatch, WorkMessage, joined
from liftlog.client.working.settings import WorkerSettings, config_of, deliver_fields
from liftlog.client.working.working import Acked, Working, as_lists
from liftlog.errors import BadRequest, CorruptBatch, InvalidArgument
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.workers import MAX_ACKED, AckWork, Delivered, Run, decode_runs, encode_runs
from liftlog.records.encode import encode_batch

STAMP_NS = 1_700_000_000_000_000_000


def body(first: int, count: int) -> bytes:
    return bytes(
        encode_batch(
            base_offset=first,
            leader_epoch=1,
            commit_group=1,
            stamps=[(STAMP_NS, count)],
            subjects=[b"a"] * count,
            values=[b"%d" % (first + n) for n in range(count)],
        )
    )


class Driven(Working):
    """A worker whose client is the test."""

    def __init__(self) -> None:
        super().__init__(WorkerSettings("s", "c", 10, None, False, True))

    def receive(self, runs: list[tuple[int, int, int]], body_: bytes) -> WorkBatch:
        exchange = Exchange()
        exchange.body = memoryview(body_)
        batch = self._received(Delivered("id", encode_runs(runs), 7, len(body_)), exchange)
        assert batch is not None
        return batch

    def requests(self, kind: str, what: Acked, delay: float = 0.0) -> list[AckWork]:
        return self._ack_requests(kind, as_lists([what]), delay)

    def confirmed(self, what: Acked) -> None:
        self._no_longer_held(as_lists([what]))

    def returned(self) -> list[AckWork]:
        return self._return_requests()


def test_a_batch_has_the_messages_of_its_runs_and_no_others() -> None:
    batch = Driven().receive([(7, 2, 3), (1, 2, 1)], body(0, 5) + body(5, 5))
    assert [(one.offset, one.deliveries) for one in batch] == [(7, 3), (8, 3), (1, 1), (2, 1)]
    assert [list(one.offsets()) for one in batch.record_batches()] == [[7, 8], [1, 2]]
    assert (len(batch), batch.pending) == (4, 7)


def test_a_run_over_several_batches() -> None:
    batch = Driven().receive([(3, 5, 1)], body(0, 5) + body(5, 5))
    assert [one.value for one in batch] == [b"3", b"4", b"5", b"6", b"7"]


def test_a_missing_message_is_an_error() -> None:
    with pytest.raises(CorruptBatch, match="3 to 7"):
        Driven().receive([(3, 5, 1)], body(0, 5)).messages()


def test_an_ack_of_a_batch_leaves_out_what_was_acked_before() -> None:
    one = Driven()
    batch = one.receive([(1, 5, 1)], body(0, 6))
    message = batch.messages()[2]
    [single] = one.requests("ack", message)
    assert decode_runs(single.runs) == [Run(3, 1, 1)]
    one.confirmed(message)
    [rest] = one.requests("nak", batch, 1.5)
    assert decode_runs(rest.runs) == [Run(1, 2, 1), Run(4, 2, 1)]
    assert (rest.identity, rest.delay_ns) == ("id", 1_500_000_000)
    [returned] = one.returned()
    assert decode_runs(returned.runs) == [Run(1, 2, 1), Run(4, 2, 1)]
    assert one.returned() == []


def test_acks_are_divided_into_requests_that_the_daemon_accepts() -> None:
    one = Driven()
    for at in range(30):
        one.receive([(at * 10_000, 10_000, 1)], b"") if at else None
    requests = one.returned()
    sizes = [sum(run.size for run in decode_runs(request.runs)) for request in requests]
    assert sum(sizes) == 290_000
    assert max(sizes) <= MAX_ACKED


def test_only_delivered_messages_can_be_acked() -> None:
    with pytest.raises(InvalidArgument, match="was not delivered"):
        as_lists([[1, 2]])  # type: ignore[list-item]


def test_messages_are_joined_to_runs() -> None:
    assert joined(iter([(4, 1), (2, 1), (3, 1), (5, 2)])) == [Run(2, 3, 1), Run(5, 1, 2)]


@pytest.mark.parametrize(
    "runs", [b"x", encode_runs([(1, 0, 1)]), encode_runs([(1, 1, 0)]), encode_runs([(-1, 1, 1)]),
             encode_runs([(1, MAX_ACKED + 1, 1)]), encode_runs([(2**63 - 1, 1, 1)])]
)  # fmt: skip
def test_wrong_runs_are_refused(runs: bytes) -> None:
    with pytest.raises(BadRequest):
        decode_runs(runs)


def test_the_settings_of_a_consumer() -> None:
    assert config_of({"ack_wait": 1.5, "backoff": [1, 2], "filters": ["a"], "deliver": 7}) == {
        "ack_wait": 1_500_000_000,
        "backoff": [1_000_000_000, 2_000_000_000],
        "filter_subjects": ["a"],
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": 7,
    }
    assert deliver_fields(0) == {"deliver_policy": "all"}
    with pytest.raises(InvalidArgument):
        config_of({"acks": 1})  # type: ignore[typeddict-unknown-key]


def test_a_message_shows_its_record() -> None:
    [message] = Driven().receive([(1, 1, 2)], body(1, 1)).messages()
    assert isinstance(message, WorkMessage)
    assert isinstance(message.held, Held)
    assert (message.subject, message.key, dict(message.headers)) == ("a", None, {})
