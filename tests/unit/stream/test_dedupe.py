"""The window of message ids."""

from __future__ import annotations

from liftlog.records import decode_batch
from liftlog.records.encode import encode_batch
from liftlog.records.message_headers import build_block
from liftlog.stream.dedupe import DedupeWindow, message_ids

S = 1_000_000_000


def ids(window: DedupeWindow) -> dict[str, int]:
    return {text: offset for _, text, offset in window.snapshot()}


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
    assert ids(window) == {"c": 3, "d": 4, "e": 5}
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
    assert ids(window) == {"a": 1}
    window.add(b"b", 2, S)
    assert window.lookup(b"b") == 2


def test_forget_newest_of_ids_that_were_evicted_meanwhile() -> None:
    window = DedupeWindow(10 * S, 2)
    for offset, name in enumerate([b"a", b"b", b"c", b"d"], start=1):
        window.add(name, offset, S)
    window.forget_newest([b"a", b"b", b"c", b"d"])
    assert len(window) == 0
    assert window.snapshot() == []


def test_snapshot_and_restore_keep_ids_of_any_bytes() -> None:
    window = DedupeWindow(10 * S, 100)
    window.add(bytes(range(1, 256)), 7, 3 * S)
    window.add(b"b", 8, 4 * S)
    again = DedupeWindow(10 * S, 100)
    again.restore(window.snapshot())
    assert again.snapshot() == window.snapshot()
    again.expire(13 * S + 1)
    assert ids(again) == {"b": 8}


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


def test_rebuild_from_a_batch() -> None:
    window = DedupeWindow(10 * S, 100)
    batch = decode_batch(batch_of(5, [(S, b"a"), (S, b""), (2 * S, b"b")]))
    assert message_ids(batch) == [(5, S, b"a"), (7, 2 * S, b"b")]
    window.add_batch(batch)
    assert window.snapshot() == [[S, "a", 5], [2 * S, "b", 7]]


def test_rebuild_of_an_id_that_was_used_again_after_its_window() -> None:
    window = DedupeWindow(10 * S, 100)
    window.add_batch(decode_batch(batch_of(1, [(S, b"a"), (11 * S + S // 2, b"a")])))
    window.expire(15 * S)
    assert window.lookup(b"a") == 2


def test_rebuild_keeps_the_original_of_what_was_stored_twice() -> None:
    window = DedupeWindow(10 * S, 100)
    window.add_batch(decode_batch(batch_of(1, [(S, b"a"), (2 * S, b"a")])))
    assert window.lookup(b"a") == 1


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
    assert message_ids(decode_batch(bytes(data))) == [(1, S, b"x")]
