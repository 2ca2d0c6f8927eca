"""A follower whose leader sends any answers: well-formed frames with wrong values, and bodies that
are cut, changed, or of other offsets. Committed records stay, and the follower does not fail."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.disks.logs import Promises, append, create
from support.disks.simfs import SimFileSystem
from support.rounds import examples
from support.worlds.followed import CONFIG, Host, Link, end_pause, followed
from support.worlds.log_model import readable

from liftlog.errors import LiftlogError
from liftlog.log import Log, LogSlice
from liftlog.protocol.replication import Replica
from liftlog.server.replication.fetching import FollowedStream

small = st.integers(0, 40)
wrong = st.fixed_dictionaries(
    {},
    optional={
        "epoch": small,
        "offset": small,
        "last_epoch": small,
        "high_watermark": small,
        "first_stored": small,
        "log_end_offset": small,
        "log_start_offset": small,
        "tombstones_removed_below": small,
        "record_version": small,
        "record_checksum": small,
        "diverging": st.lists(small, min_size=2, max_size=2),
        "gap": st.dictionaries(
            st.sampled_from(["next", "reason", "loss", "epochs"]),
            st.one_of(
                small, st.text(max_size=5), st.lists(st.lists(small, max_size=3), max_size=3)
            ),
            max_size=4,
        ),
        "side_state": st.dictionaries(
            st.sampled_from(["version", "leases", "tombstone_bound"]),
            st.one_of(
                small,
                st.text(max_size=5),
                st.lists(st.dictionaries(st.sampled_from(["lease_id", "low"]), small), max_size=2),
            ),
            max_size=3,
        ),
    },
)
answers = st.lists(
    st.tuples(
        wrong,
        st.sampled_from(["right", "right", "cut", "flipped", "elsewhere", "noise", "none"]),
        st.integers(0, 2**16),
    ),
    max_size=12,
)


def body_of(leader: Log, offset: int, how: str, seed: int) -> bytes:
    if how == "noise":
        return bytes((seed * i) & 0xFF for i in range(seed % 300))
    start = 1 + seed % (leader.log_end_offset - 1) if how == "elsewhere" else offset
    if how == "none" or not 1 <= start < leader.log_end_offset:
        return b""
    found = leader.read_replica(start, 300)
    assert isinstance(found, LogSlice)
    with found:
        raw = bytearray(found.pread())
    if how == "cut":
        del raw[seed % len(raw) :]
    elif how == "flipped":
        raw[seed % len(raw)] ^= 1 << seed % 8
    return bytes(raw)


@settings(max_examples=examples(1.5))
@given(answers)
def test_nothing_that_is_committed_is_lost(told: list[tuple[dict[str, Any], str, int]]) -> None:
    asyncio.run(_follow(told))


async def _follow(told: list[tuple[dict[str, Any], str, int]]) -> None:
    leader = create(SimFileSystem(), config=CONFIG)
    leader.writer.begin_epoch(1)
    promises = Promises()
    for count in (3, 1, 4, 2):
        append(leader, promises, count)
    log = create(SimFileSystem(), config=CONFIG)
    log.writer.begin_epoch(1)
    host, link = Host(log), Link()
    stream = followed(host, link)
    stream.start()
    for values, how, seed in told:
        if link.asked is None or host.failure:
            break
        (asked, exchange), link.asked = link.asked, None
        before = {o: r for o, r in readable(log).items() if o < log.high_watermark}
        body = body_of(leader, asked.offset, how, seed)
        right = Replica(
            asked.epoch, asked.offset, asked.last_epoch, asked.offset, leader.log_end_offset, 1,
            body_length=len(body),
        )  # fmt: skip
        exchange.body = memoryview(body)
        exchange.finish(right.replaced(**values), None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        kept = {o: r for o, r in readable(log).items() if o in before}
        start = log.log_start_offset
        assert kept == {o: r for o, r in before.items() if o >= start}
        assert log.high_watermark <= log.log_end_offset
        assert all(isinstance(one, LiftlogError) for one in host.errors), host.errors
        if link.asked is None and not host.failure:
            end_pause(stream)
    if not host.failure:
        await _catch_up(stream, link, leader)
    stream.close()


async def _catch_up(stream: FollowedStream, link: Link, leader: Log) -> None:
    """With right answers it gets everything, or reports why it must not."""
    log, host = stream.host.log, stream.host
    for _ in range(50):
        if log.log_end_offset >= leader.log_end_offset or host.failure:
            return
        if stream.follower.waits_for_version > stream.follower.record.version:
            return  # the leader has named a record that does not exist
        assert link.asked is not None, "it waits for nothing"
        (asked, exchange), link.asked = link.asked, None
        body = body_of(leader, asked.offset, "right", 0)
        exchange.body = memoryview(body)
        end = leader.log_end_offset
        exchange.finish(
            Replica(
                asked.epoch, asked.offset, asked.last_epoch, 1, end, 1, body_length=len(body)
            ),
            None,
        )  # fmt: skip
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if link.asked is None and not host.failure:
            end_pause(stream)
    raise AssertionError("it does not catch up")
