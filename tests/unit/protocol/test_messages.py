from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from liftlog.errors import BadRequest, InvalidArgument
from liftlog.names import check_stream_name
from liftlog.protocol import administration as a
from liftlog.protocol import checkpoints as c
from liftlog.protocol import consumer_states as n
from liftlog.protocol import groups as g
from liftlog.protocol import messages as m
from liftlog.protocol import replication as r
from liftlog.protocol import workers as w
from liftlog.protocol.described import ErasureInfo, ProvenFile
from liftlog.protocol.wire import Message, wire_fields

NONCE = b"n" * 16

EXAMPLES: list[Message] = [
    m.Hello([1], NONCE, "x/1"),
    m.Challenge(1, "server", NONCE, ["token"]),
    m.Auth("token", "p.secret"),
    m.Welcome("alice", "liftlog/0", 1, 2, 3, 4),
    m.Ping(),
    m.Pong(),
    m.Fetch("s", start=7, max_bytes=1, max_records=2, min_bytes=3, max_wait_ms=4, epoch=5),
    m.Fetch("s", start="earliest", incarnation="abc"),
    m.Fetch("s", timestamp_ns=1_700_000_000_000_000_000),
    m.Fetch("s", 1, filter_subjects=["a.>"], filter_keys=[b"", b"k"], columns=["key"]),
    m.Fetch("s", 1, filter_headers=["A", "B=c"]),
    m.Fetch("s", 1, filter_slots=[0, 63], slot_count=64),
    m.Fetch("s", 1, optional_subjects=["a.*", "b"]),
    m.Fetch("s", 1, replica=m.ANY_REPLICA, at_least=9),
    m.FetchHeader(5, 5, 101, 3, 1001, 1, 1001, 3, "abc", 800, selected=True),
    m.FetchHeader(5, 1, 101, 100, 1001, 1, 1001, 3, "abc", 800),
    m.FetchHeader(5, 1, 101, 100, 1001, 1, 1001, 3, "abc", 800, tombstones_removed_below=4),
    m.CreateStream("s", {"subject": "a.>", "retention": {"max_age": "7d"}}),
    m.DescribeStream("s"),
    m.ListStreams(),
    m.DeleteStream("s"),
    m.CompactStream("s"),
    a.UpdateStream("s", {"retention": {"max_age": "1d"}}, dry_run=True, allow_deletion=True),
    a.PauseStream("s"),
    a.ResumeStream("s"),
    a.SetReadOnly("s", True),
    a.TruncateStream("s", 17, "abc"),
    a.EraseRecords("s", [5, 6, 900, 1000], "request 17", True, "abc"),
    a.EraseRecords("s", [5, 6]),
    a.EraseRecords(
        "s",
        filter_subjects=["orders.>"],
        filter_keys=[b"17"],
        filter_headers=["Source=shop"],
        since_ns=1,
        until_ns=2**62,
        now=True,
    ),
    a.ListErasures("s"),
    a.ListErasures("s", "0f1e"),
    a.ProveErasure("s", "0f1e"),
    a.ListErasedOffsets("s"),
    a.ListErasedOffsets("s", "0f1e", 3),
    a.RemoveErased("s", "0f1e"),
    a.ErasuresAnswer([ErasureInfo("0f1e", 17, "ops", "why", count=5).to_wire()], 3),
    a.ErasedOffsetsAnswer(""),
    a.ErasedOffsetsAnswer("0f1e", [0, 7], [b"bits", b"more"], 9, 17),
    a.ProofAnswer(5, 1, 3, 4096, [ProvenFile("x.log", False, 99, 1, 5, "odd").to_wire()]),
    a.Erased(17, "0f1e", False, [5, 9]),
    a.Erased(17, "", True, [], 5, 99, 3, 100, ["orders.eu", "orders.us"]),
    a.AcquireLease("s", "earliest", 60_000, "export", "abc"),
    a.RenewLease("s", "1d", 60_000, 9),
    a.RenewLease("s", "1d", 60_000, None, 0, 7),
    a.RenewLease("s", "1d", 60_000, None, 0, 7, None, True),
    a.RenewLease("s", "1d", 60_000, None, None, None, 3),
    a.AcquireLease("s", 5, 60_000, "export", "0f1e", True),
    a.ReleaseLease("s", "1d"),
    a.ListLeases("s"),
    a.ListExtents("s", 1, 4096),
    a.StreamsFor("orders.eu"),
    a.Metadata(),
    c.CommitCheckpoint("s", "billing", 17, 9, "host 3", "abc", 5),
    c.CommitCheckpoint("s", "billing", 17),
    c.FetchCheckpoint("s", "billing", unchecked=True),
    c.ListCheckpoints("s", "billing", "billing/s"),
    c.DeleteCheckpoint("s", "billing", 17),
    c.CheckpointAnswer({"consumer": "billing", "offset": 17}),
    c.CheckpointsAnswer([{"consumer": "billing", "offset": 17}], "billing/s"),
    g.JoinGroup("s", "billing", "w1", "0f1e", 10_000, 64, 17, 3),
    g.BeatGroup("s", "billing", "w1", 3, 5, [0, 1], 3_000),
    g.CommitGroup("s", "billing", "w1", 3, 5, [0, 1], [17, 18], "abc", 5),
    g.LeaveGroup("s", "billing", "w1", 3),
    g.DescribeGroup("s", "billing"),
    g.ListGroups("s", "billing/s"),
    g.SeekGroup("s", "billing", 17),
    g.RemoveGroup("s", "billing"),
    g.AssignmentAnswer(3, 5, 64, [0, 1], [3, 3], [17, 0], "abc", 5),
    g.GroupAnswer({"group": "billing", "stream": "s"}),
    g.GroupsAnswer([{"group": "billing", "stream": "s"}], "billing/s"),
    r.Peer("b", 3, "c0ffee", ["x"]),
    r.Replicate(
        "s", "abc", 7, 100, 6, 1 << 20, 2, corrupt=True, record=[9, 123], leader_record=[8, 9]
    ),
    r.Replicate("s", "abc", 7, 100, 6, 1 << 20, 2, full=True),
    r.Replicate("s", "abc", 7, 100, 6, 1 << 20, 2, old_consumers=True),
    n.FetchConsumers("s", "abc", 7, [3, 9, 8, 9]),
    n.FetchConsumers("s", "abc", 7),
    n.ConsumerChanges(7, 3, 9, 9, 8, 100),
    r.DescribeCluster(),
    r.Forward(b"\x80", "billing"),
    r.Forward(b"\x80"),
    r.MoveStream("s", ["a", "b"]),
    r.MoveStream("s"),
    r.DrainNode("c"),
    r.DrainNode("c", True),
    r.ForgetNode("c"),
    r.Copies(["s"]),
    r.Copies([]),
    r.RestoreMetadata(True),
    r.CopiesAnswer({"s": ["{}", 3, 40]}),
    r.CopiesAnswer({}, ["s", "t"]),
    r.RestoreAnswer([{"stream": "s"}], ["c"]),
    r.Ends(["s", "t"]),
    r.EndsAnswer({"s": ["abc", 1, 40]}),
    r.Resign(["s", "t"], detached=True),
    r.ResignAnswer({"s": b"{}"}),
    r.PeerAnswer("a", 4, ["x"]),
    r.Suspect("c"),
    r.HandOver("s", "abc", 7, "a", "tell", b"t" * 16, 100, b"d" * 16, True),
    r.HandOver("s", "abc", 7, "a", "prepare", b"t" * 16),
    r.LookAgain("s", 12),
    r.ElectLeader("s", "b"),
    r.ElectLeader("s"),
    r.ElectLeader("s", "b", ["a", "c"]),
    r.LeaderAnswer("b"),
    r.SuspectAnswer(True, 1500, {"s": [3, 40]}),
    r.Replica(7, 100, 6, 90, 120, 1, body_length=8),
    r.Replica(7, 100, 6, 90, 120, 1, [5, 80]),
    r.Replica(7, 1, 0, 90, 120, 1, None, {"next": 4}, 3, 2, 5, 6, {"version": 1}, record=b"{}"),
    r.ClusterAnswer({"cluster_id": "c0ffee"}),
    w.PullWork("s", "billing", 500, 1 << 20, 20_000, "0f1e"),
    w.Rest("s", "billing", "0f1e"),
    w.AckWork("s", "billing", "abc.5", "nak", w.encode_runs([(17, 3, 2)]), 10**9),
    w.AckWork("s", "billing", "abc.5", "term", w.encode_runs([(17, 3, 2)]), 0, "no job"),
    w.CreateConsumer("s", "billing", {"ack_wait": 10**9}),
    w.UpdateConsumer("s", "billing", {"ack_wait": None}),
    w.ResetConsumer("s", "billing", {"deliver_policy": "new"}),
    w.DescribeConsumer("s", "billing"),
    w.ListConsumers("s", "billing"),
    w.PauseConsumer("s", "billing", 10**18),
    w.DeleteConsumer("s", "billing"),
    w.Delivered("abc.5", w.encode_runs([(17, 3, 1)]), 40, 800),
    w.ConsumerAnswer({"name": "billing"}, True),
    w.ConsumersAnswer([{"name": "billing"}], "billing"),
    m.Cancel(),
    a.Updated({"name": "s"}, [{"setting": "acks"}], {"records": 3}, True),
    a.LeaseAnswer({"lease_id": "1d"}),
    a.LeasesAnswer([{"lease_id": "1d"}]),
    a.ExtentsAnswer([1, 5], [100]),
    a.DaemonAnswer({"name": "main"}),
    m.StreamAnswer({"name": "s"}),
    m.StreamsAnswer([{"name": "s"}, {"name": "t"}]),
    m.Done(),
    m.ErrorAnswer(10, "STREAM_NOT_FOUND", "no", True, "hint", {"a": 1}),
]


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: message.KIND)
def test_every_message_survives_the_wire(message: Message) -> None:
    encoded = message.to_map(42)
    assert (encoded["k"], encoded["i"]) == (message.KIND, 42)
    assert type(message).from_map({**encoded, "unknown": [1]}) == message


def test_every_kind_has_an_example() -> None:
    kinds = {*m.OPENING, *m.REQUESTS, *m.ANSWERS}
    assert {message.KIND for message in EXAMPLES} == kinds


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: message.KIND)
def test_a_missing_required_key_is_named(message: Message) -> None:
    for field in wire_fields(type(message)):
        encoded = message.to_map(1)
        encoded.pop(field.key, None)
        if field.required:
            with pytest.raises(BadRequest, match=f"'{field.key}'"):
                type(message).from_map(encoded)
        else:
            type(message).from_map(encoded)


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: message.KIND)
def test_a_value_of_a_wrong_type_is_refused(message: Message) -> None:
    for field in wire_fields(type(message)):
        with pytest.raises(BadRequest, match=f"'{field.key}'"):
            type(message).from_map({**message.to_map(1), field.key: object()})


@pytest.mark.parametrize(
    ("key", "value"),
    [("o", -1), ("o", 2**63), ("o", True), ("o", "x" * 17), ("m", 1.5), ("w", -1), ("x", 5)],
)
def test_numbers_and_texts_of_a_fetch_are_bounded(key: str, value: Any) -> None:
    with pytest.raises(BadRequest):
        m.Fetch.from_map({"s": "s", key: value})


def test_a_nonce_must_have_its_length() -> None:
    with pytest.raises(BadRequest, match="'n'"):
        m.Hello.from_map({"v": [1], "n": b"short"})


def test_a_token_is_not_shown() -> None:
    assert "secret" not in repr(m.Auth("token", "p.secret"))


def test_stream_info_keeps_what_it_knows_and_tolerates_the_rest() -> None:
    info = m.StreamInfo(
        "s",
        "a.>",
        queue_group="g",
        high_watermark=7,
        settings={"acks": "on"},
        warnings=["w"],
        possible_losses=[{"offset": 3}],
    )
    assert m.StreamInfo.from_wire(info.to_wire()) == info
    strange = {"name": "s", "subject": 5, "high_watermark": True, "new": 1, "warnings": None}
    assert m.StreamInfo.from_wire(strange) == m.StreamInfo("s", "")


@pytest.mark.parametrize("name", ["a", "A-b_9", "0", "x" * 128])
def test_good_names(name: str) -> None:
    check_stream_name(name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "a/b", "a.b", "-a", "x" * 129, "x" * 200, "a\0", "a\n", "a b", "ä"],
)
def test_bad_names(name: str) -> None:
    with pytest.raises(InvalidArgument, match="not a stream name"):
        check_stream_name(name, may_be_system=True)


def test_system_names_can_be_read_only() -> None:
    check_stream_name("_offsets", may_be_system=True)
    with pytest.raises(InvalidArgument, match="reserved"):
        check_stream_name("_offsets")


def test_messages_are_values_that_cannot_be_changed() -> None:
    asked = m.Fetch("s", 7, max_bytes=1)
    assert asked == m.Fetch(stream="s", start=7, max_bytes=1) != m.Fetch("s", 8, max_bytes=1)
    assert hash(asked) == hash(m.Fetch("s", 7, max_bytes=1))
    assert m.DescribeStream("s") != m.DeleteStream("s")
    assert asked.replaced(start=8) == m.Fetch("s", 8, max_bytes=1)
    assert pickle.loads(pickle.dumps(asked)) == copy.deepcopy(asked) == asked
    with pytest.raises(AttributeError, match="cannot be changed"):
        asked.start = 9  # type: ignore[misc]
    with pytest.raises(AttributeError, match="cannot be changed"):
        del asked.start
    with pytest.raises(AttributeError):
        object.__setattr__(asked, "no_such", 9)


def test_a_constructor_checks_its_arguments() -> None:
    for wrong in (
        lambda: m.DescribeStream(),  # type: ignore[call-arg]
        lambda: m.DescribeStream("s", "t"),  # type: ignore[call-arg]
        lambda: m.DescribeStream("s", stream="s"),  # type: ignore[misc]
        lambda: m.DescribeStream(name="s"),  # type: ignore[call-arg]
    ):
        with pytest.raises(TypeError):
            wrong()


def test_default_lists_and_maps_are_not_shared() -> None:
    first, second = m.ErrorAnswer(1, "A", "b"), m.ErrorAnswer(1, "A", "b")
    first.details["x"] = 1
    assert second.details == {}


def test_secrets_are_not_in_the_repr() -> None:
    shown = repr(m.Auth("token", "p.secret", signature=b"s" * 64))
    assert shown == "Auth(method='token', public_key=None)"
