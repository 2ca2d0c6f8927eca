"""Record batches for workers on the pull socket."""

from __future__ import annotations

import numpy as np

from liftlog.records.decode import iter_batches
from liftlog.records.encode import encode_batch
from liftlog.server.jetstream_api.workers.local_work import runs_of
from liftlog.server.jetstream_api.workers.pieces import MOST_CUTS, Piece

STAMP_NS = 1_700_000_000_000_000_000


def batch(first: int, count: int, offsets: list[int] | None = None) -> bytes:
    return bytes(
        encode_batch(
            base_offset=first,
            leader_epoch=3,
            commit_group=1,
            stamps=[(STAMP_NS + (first + n) * 1000, 1) for n in range(count)],
            subjects=[b"a"] * count,
            values=[b"%d" % n + b"x" * 100 for n in range(count)],
            offsets=offsets,
            last_offset=offsets[-1] if offsets else None,
        )
    )


def test_the_bounds_of_timestamps_cover_each_part() -> None:
    piece = Piece(batch(10, 5) + batch(15, 5), 10, 20)
    assert piece.offsets.tolist() == list(range(10, 20))
    some = piece.records(13, 4)
    assert some.offsets.tolist() == [13, 14, 15, 16]
    assert some.stamps_ns.min() <= STAMP_NS + 13_000
    assert some.stamps_ns.max() >= STAMP_NS + 16_000
    assert piece.records(12, 1).stamps_ns.tolist() == [STAMP_NS + 12_000]


def test_batches_with_holes() -> None:
    piece = Piece(batch(10, 3, [10, 13, 19]), 10, 20)
    assert piece.records(11, 5).offsets.tolist() == [13, 19]


def test_batches_leave_as_they_are_stored_unless_too_much_goes_with_them() -> None:
    first, second = batch(0, 400), batch(400, 400)
    piece = Piece(first + second, 0, 800)
    [body] = piece.bodies(0, 399, 400) or ()
    assert bytes(body) == first
    [body] = piece.bodies(100, 700, 601) or ()
    assert bytes(body) == first + second
    assert piece.bodies(100, 120, 21) is None
    assert piece.is_coarse(21)
    assert not piece.is_coarse(200)


def test_a_cut_keeps_each_record_in_its_place() -> None:
    stored = batch(5, 1000, [5 + 2 * n for n in range(1000)]) + batch(3000, 3)
    piece = Piece(stored, 5, 3003)
    cut = piece.cut(300)
    assert not cut.is_coarse(300)
    assert cut.offsets.tolist() == piece.offsets.tolist()
    assert (cut.first_offset, cut.next_offset) == (5, 3003)
    [body] = cut.bodies(5 + 2 * 300, 5 + 2 * 599, 300) or ()
    [part] = iter_batches(bytes(body))
    [whole, _] = iter_batches(stored)
    assert part.records() == whole.records()[300:600]
    assert part.header.leader_epoch == 3


def test_a_cut_makes_few_batches_from_where_it_begins() -> None:
    """For workers that get one record at a time, a piece of 1 MiB would take a second."""
    stored = batch(5, 1000, [5 + 2 * n for n in range(1000)]) + batch(3000, 1000)
    piece = Piece(stored, 5, 4000)
    for start in (5, 6, 305, 1003):
        cut = piece.cut(1, start)
        wanted = piece.offsets[piece.offsets >= start].tolist()
        assert cut.offsets.tolist() == wanted[:MOST_CUTS]
        assert (cut.first_offset, cut.next_offset) == (start, wanted[MOST_CUTS])
        [body] = cut.bodies(wanted[3], wanted[3], 1) or ()
        [part] = iter_batches(bytes(body))
        assert list(part.offsets()) == [wanted[3]]
    at_end = piece.cut(1, 2003)
    assert at_end.offsets.tolist() == [2003, *range(3000, 3000 + MOST_CUTS - 1)]
    beyond = piece.cut(1, 2500)  # in the hole behind the last record of the first batch
    assert beyond.offsets.tolist() == list(range(3000, 3000 + MOST_CUTS))
    found: list[int] = []
    start = 5
    while start < 4000:
        cut = piece.cut(20, start)
        found += cut.offsets.tolist()
        assert cut.next_offset > start
        start = cut.next_offset
    assert found == piece.offsets.tolist()


def test_runs_of_a_delivery() -> None:
    offsets = np.array([4, 5, 9, 10, 11, 2])
    counts = np.array([1, 1, 1, 2, 2, 1])
    assert runs_of(offsets, counts) == [(4, 2, 1), (9, 1, 1), (10, 2, 2), (2, 1, 1)]
    assert runs_of(offsets[:0], counts[:0]) == []
