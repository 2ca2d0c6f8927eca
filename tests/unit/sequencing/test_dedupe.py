"""The window of message ids."""

from __future__ import annotations

import json
import sys
import tracemalloc

import hypothesis.strategies as st
import pytest
from hypothesis import given

from liftlog.records import decode_batch
from liftlog.records.encode import encode_batch
from liftlog.records.message_headers import build_block
from liftlog.sequencing.dedupe import KEPT_BYTES, DedupeWindow, StoredHeaders, StoredIds

S = 1_000_000_000


def marks(window: DedupeWindow) -> dict[bytes, int]:
    return {bytes.fromhex(mark): offset for _, mark, offset in window.snapshot()["remembered"]}


def test_expiry_goes_by_stamps() -> None:
    window = DedupeWindow(10 * S, 100)
    window.add(b"a", 1, 100 * S)
    window.add(b"b", 2, 105 * S)
    window.expire(110 * S)
    assert window.lookup(b"a") == 1, "exactly the window is still inside"
    window.expire(110 * S + 1)
    assert window.lookup(b"a") is None
    assert window.lookup(b"b") == 2


def test_too_many_ids_evict_the_oldest_and_are_counted() -> None:
    window = DedupeWindow(10 * S, 3)
    for offset, name in enumerate([b"a", b"b", b"c", b"d", b"e"], start=1):
        window.add(name, offset, S)
    assert marks(window) == {b"c": 3, b"d": 4, b"e": 5}
    assert window.evicted_early == 2
    assert len(window) == 3


def test_the_original_keeps_its_place() -> None:
    window = DedupeWindow(10 * S, 100)
    assert window.add(b"a", 1, S)
    assert not window.add(b"a", 2, 2 * S)
    assert window.lookup(b"a") == 1
    window.expire(12 * S)
    assert len(window) == 0


def test_forget_newest_takes_back_in_reverse() -> None:
    window = DedupeWindow(10 * S, 100)
    for offset, name in enumerate([b"a", b"b", b"c"], start=1):
        window.add(name, offset, S)
    window.forget_newest([b"b", b"c"])
    assert marks(window) == {b"a": 1}
    window.add(b"b", 2, S)
    assert window.lookup(b"b") == 2


def test_forget_newest_of_ids_that_were_evicted_meanwhile() -> None:
    window = DedupeWindow(10 * S, 2)
    for offset, name in enumerate([b"a", b"b", b"c", b"d"], start=1):
        window.add(name, offset, S)
    window.forget_newest([b"a", b"b", b"c", b"d"])
    assert len(window) == 0
    assert window.snapshot()["remembered"] == []


def test_snapshot_and_restore_keep_ids_of_any_bytes_and_length() -> None:
    window = DedupeWindow(10 * S, 100)
    strange, endless = bytes(range(1, 256)), b"x" * 1_000_000
    for offset, name in enumerate([strange, endless, b"b"], start=7):
        window.add(window.mark(name), offset, 3 * S if offset < 9 else 4 * S)
    assert len(json.dumps(window.snapshot())) < 300
    again = DedupeWindow(10 * S, 100)
    again.restore(window.snapshot())
    assert again.snapshot() == window.snapshot()
    assert [again.lookup(again.mark(n)) for n in (strange, endless, b"b")] == [7, 8, 9]
    again.expire(13 * S + 1)
    assert marks(again) == {again.mark(b"b"): 9}


def test_a_snapshot_of_a_version_that_kept_the_ids_themselves() -> None:
    window = DedupeWindow(10 * S, 100)
    window.restore({"ids": [[3 * S, bytes(range(1, 256)).decode("latin-1"), 7], [4 * S, "b", 8]]})
    assert window.lookup(window.mark(bytes(range(1, 256)))) == 7
    assert window.lookup(window.mark(b"b")) == 8
    assert len(window) == 2


def test_a_publisher_cannot_know_a_mark() -> None:
    window, other = DedupeWindow(10 * S, 100), DedupeWindow(10 * S, 100)
    long = b"a" * (KEPT_BYTES + 1)
    assert len(window.mark(long)) == 16
    assert window.mark(long) == window.mark(long) != other.mark(long)


def test_a_short_id_is_its_own_mark() -> None:
    window = DedupeWindow(10 * S, 100)
    ids = [b"a" * KEPT_BYTES, b"b", b""]
    assert [window.mark(one) for one in ids] == list(window.marks(ids)) == ids
    ids.append(b"a" * (KEPT_BYTES + 1))
    assert [window.mark(one) for one in ids] == list(window.marks(ids)) != ids
    assert sys.getsizeof(ids[0]) <= sys.getsizeof(window.mark(ids[-1])) + 31


@given(
    max_ids=st.integers(1, 12),
    runs=st.lists(
        st.lists(st.sampled_from([b"", *(b"%d" % n for n in range(9))]), max_size=10),
        max_size=6,
    ),
)
def test_a_run_comes_to_the_same_as_its_ids_one_by_one(
    max_ids: int, runs: list[list[bytes]]
) -> None:
    """b"" is a message without an id, which takes an offset all the same."""
    by_run, one_by_one = DedupeWindow(10 * S, max_ids), DedupeWindow(10 * S, max_ids)
    next_offset = 1
    for stamp, run in enumerate(runs):
        named = list(filter(None, run))
        if by_run.may_evict(named):
            for one in named:
                assert by_run.add(one, next_offset, stamp) == one_by_one.add(
                    one, next_offset, stamp
                )
                next_offset += 1
            continue
        first = next_offset
        is_new: list[bool] = []
        offsets: list[int] = []
        for one in run:
            original = one_by_one.lookup(one) if one else None
            if one:
                is_new.append(original is None)
                offsets.append(next_offset if original is None else original)
            if one and original is None:
                one_by_one.add(one, next_offset, stamp)
            next_offset += original is None
        added = by_run.add_run(named, [first + row for row, one in enumerate(run) if one], stamp)
        assert list(added.is_new or [True] * len(named)) == is_new
        assert list(added.offsets) == offsets
        assert [one for one, new in zip(named, is_new, strict=True) if new] == list(added.new)
        assert contents(by_run) == contents(one_by_one)
        assert by_run.evicted_early == one_by_one.evicted_early
        by_run.forget_newest(added.new[-2:])
        one_by_one.forget_newest(added.new[-2:])
        assert contents(by_run) == contents(one_by_one)


def test_a_run_without_ids_leaves_no_trace() -> None:
    window = DedupeWindow(10, 5)
    assert window.add_run([], [], 1) == ([], [], [])
    window.expire(100)
    assert contents(window) == contents(DedupeWindow(10, 5))


def contents(window: DedupeWindow) -> object:
    return window.snapshot()["remembered"], len(window)


def test_a_snapshot_of_a_version_that_hashed_every_id_is_not_understood() -> None:
    window = DedupeWindow(10 * S, 100)
    with pytest.raises(KeyError):
        window.restore({"key": "00" * 16, "marks": [[S, "11" * 16, 5]]})
    assert len(window) == 0


def test_ids_cost_the_same_memory_whatever_their_length() -> None:
    window = DedupeWindow(10 * S, 1000)
    tracemalloc.start()
    try:
        for number in range(300):
            window.add(window.mark(b"%d" % number * 100_000), number + 1, S)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 300 * 400


def batch_of(base_offset: int, stamped: list[tuple[int, bytes]]) -> bytes:
    return bytes(
        encode_batch(
            base_offset=base_offset,
            leader_epoch=1,
            commit_group=0,
            stamps=[(stamp, 1) for stamp, _ in stamped],
            subjects=[b"s"] * len(stamped),
            values=[b"v"] * len(stamped),
            headers=[build_block([(b"Nats-Msg-Id", name)]) if name else b"" for _, name in stamped],
        )
    )


def stored_ids(*batches: bytes | bytearray) -> StoredIds:
    headers = StoredHeaders()
    for batch in batches:
        headers.add(decode_batch(bytes(batch)))
    return headers.ids()


def test_rebuild_from_a_batch() -> None:
    window = DedupeWindow(10 * S, 100)
    found = stored_ids(batch_of(5, [(S, b"a"), (S, b""), (2 * S, b"b")]))
    assert found == ([5, 7], [S, 2 * S], [b"a", b"b"])
    window.add_stored(found)
    assert window.snapshot()["remembered"] == [
        [S, window.mark(b"a").hex(), 5],
        [2 * S, window.mark(b"b").hex(), 7],
    ]


def test_rebuild_of_an_id_that_was_used_again_after_its_window() -> None:
    window = DedupeWindow(10 * S, 100)
    window.add_stored(stored_ids(batch_of(1, [(S, b"a"), (11 * S + S // 2, b"a")])))
    window.expire(15 * S)
    assert window.lookup(window.mark(b"a")) == 2


def test_rebuild_keeps_the_original_of_what_was_stored_twice() -> None:
    window = DedupeWindow(10 * S, 100)
    window.add_stored(stored_ids(batch_of(1, [(S, b"a"), (2 * S, b"a")])))
    assert window.lookup(window.mark(b"a")) == 1


def test_only_the_first_id_of_a_record_and_no_empty_one() -> None:
    twice = b"NATS/1.0\r\nNats-Msg-Id: x\r\nNats-Msg-Id: y\r\n\r\n"
    empty = b"NATS/1.0\r\nNats-Msg-Id:\r\nNats-Msg-Id: y\r\n\r\n"
    data = encode_batch(
        base_offset=1,
        leader_epoch=1,
        commit_group=0,
        stamps=[(S, 2)],
        subjects=[b"s", b"s"],
        values=[b"", b""],
        headers=[twice, empty],
    )
    assert stored_ids(data) == ([1], [S], [b"x"])


@given(
    runs=st.lists(
        st.tuples(st.integers(0, 6), st.lists(st.sampled_from(b"abcdefgh"), max_size=6)),
        max_size=12,
    ),
    max_ids=st.integers(1, 12),
)
def test_ids_of_many_batches_are_learned_as_one_after_the_other(
    runs: list[tuple[int, list[int]]], max_ids: int
) -> None:
    """Whatever was used again, evicted or expired between them."""
    whole, single = DedupeWindow(10 * S, max_ids), DedupeWindow(10 * S, max_ids)
    single.restore({"key": whole.snapshot()["key"], "remembered": []})
    now, offset, batches = S, 1, []
    last = now
    for pause, names in runs:
        now += pause * S
        if names:
            last = now
            batches.append(batch_of(offset, [(now, bytes([name])) for name in names]))
        for name in names:
            single.expire(now)
            single.add(single.mark(bytes([name])), offset, now)
            offset += 1
    whole.add_stored(stored_ids(*batches))
    assert whole.snapshot() == single.snapshot()
    assert whole.evicted_early == single.evicted_early
    assert whole.is_due(now + 11 * S) == (len(whole) > 0)
    assert not whole.is_due(last)  # later, the oldest may be
