"""Frames of administration, byte for byte: other clients have been built by them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from liftlog.protocol import administration as a
from liftlog.protocol.described import DaemonInfo, ErasureInfo, LeaseInfo, ProvenFile, Removal
from liftlog.protocol.frames import FrameReader, encode_frame
from liftlog.protocol.messages import ANSWERS, REQUESTS
from liftlog.protocol.wire import Message
from liftlog.server.vitals.conditions import Condition

GOLDEN = Path(__file__).parents[2] / "golden/protocol"

LEASE = LeaseInfo("orders", "0f1e", "1d", 5, 81, "export", 1_700_000_060_000_000_000, 60_000)
DIFFERENCE = {"setting": "retention.max_messages", "existing": None, "requested": 76}
DAEMON = DaemonInfo(
    "main",
    "0.1.0",
    "c0ffee00",
    1_700_000_000_000_000_000,
    1.5,
    {"connected": True, "server_version": "2.15.1"},
    {"max_in_flight": 64},
    2,
    ["fetch", "ping"],
    {"lost_records": "orders: 5 offsets cannot be read: [1, 6) rot"},
    [Condition.of("lost_records", "5 offsets cannot be read: [1, 6) rot", "orders").to_wire()],
    ["tcp://a:9292", "tcp://b:9292"],
    "0123456789ab",
)

EXAMPLES: list[Message] = [
    a.UpdateStream("orders", {"retention": {"max_messages": 76}}, dry_run=True),
    a.PauseStream("orders"),
    a.ResumeStream("orders"),
    a.SetReadOnly("orders", True),
    a.TruncateStream("orders", 5, "0f1e"),
    a.EraseRecords(
        "orders",
        [5, 6, 900, 1000],
        "request 17",
        True,
        "0f1e",
        ["orders.eu.>"],
        [b"17"],
        ["H"],
        1,
        9,
        True,
    ),
    a.ListErasures("orders", "0f1e"),
    a.ProveErasure("orders", "0f1e"),
    a.ListErasedOffsets("orders", "0f1e", 3),
    a.RemoveErased("orders", "0f1e"),
    a.ErasuresAnswer([ErasureInfo("0f1e", 17, "ops", "why", count=5).to_wire()], 3),
    a.ErasedOffsetsAnswer("0f1e", [0, 7], [b"bits", b"more"], 9, 17, is_listed=False),
    a.ProofAnswer(5, 1, 3, 4096, [ProvenFile("x.log", False, 99, 1, 5, "odd").to_wire()]),
    a.AcquireLease("orders", "earliest", 60_000, "export"),
    a.RenewLease("orders", "1d", 60_000, 9),
    a.ReleaseLease("orders", "1d"),
    a.ListLeases("orders"),
    a.StreamsFor("orders.eu"),
    a.ListExtents("orders", 5, 4096),
    a.Metadata(),
    a.Updated({"name": "orders"}, [DIFFERENCE], Removal(5, 4, 1, 400, ["max"]).to_wire(), True),
    a.LeaseAnswer(LEASE.to_wire()),
    a.LeasesAnswer([LEASE.to_wire()]),
    a.Erased(17, "0f1e", False, [5, 9], 4, 99, 3, 100, ["orders.eu"]),
    a.ExtentsAnswer([1, 9, 81], [4000, 300]),
    a.DaemonAnswer(DAEMON.to_wire()),
]


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: message.KIND)
def test_the_golden_frames_are_what_the_code_writes_and_reads(message: Message) -> None:
    golden = (GOLDEN / f"{message.KIND}.bin").read_bytes()
    assert encode_frame(message.to_map(7)) == golden
    frames = FrameReader(max_frame_bytes=4096, max_body_bytes=0)
    frames.get_buffer()[: len(golden)] = golden
    frames.buffer_updated(len(golden))
    received = frames.next_event()
    assert isinstance(received, dict)
    assert {**REQUESTS, **ANSWERS}[received["k"]].from_map(received) == message


@pytest.mark.parametrize(
    "lacking",
    [
        ("warnings", "conditions", "nodes", "commit"),
        ("conditions", "nodes", "commit"),
        ("commit",),
    ],
)
def test_an_older_daemon_is_understood(lacking: tuple[str, ...]) -> None:
    golden = (GOLDEN / f"daemon-without-{lacking[0]}.bin").read_bytes()
    frames = FrameReader(max_frame_bytes=4096, max_body_bytes=0)
    frames.get_buffer()[: len(golden)] = golden
    frames.buffer_updated(len(golden))
    received = frames.next_event()
    assert isinstance(received, dict)
    answer = a.DaemonAnswer.from_map(received)
    without: dict[str, Any] = {one: type(getattr(DAEMON, one))() for one in lacking}
    assert DaemonInfo.from_wire(answer.daemon) == replace(DAEMON, **without)


def test_every_kind_has_a_golden_frame() -> None:
    kinds = {cls.KIND for cls in (*a.REQUESTS, *a.ANSWERS)}
    assert {message.KIND for message in EXAMPLES} == kinds
