"""What is remembered of the slots that fetches name, and how records are divided by it."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pytest

from liftlog.records import decode_batch, encode_batch
from liftlog.records.columns.slots import WantedSlots, flags_of
from liftlog.server.reading import shares as module
from liftlog.server.reading.pieces import SharedPieces, _parts_of
from liftlog.server.reading.shares import Division, Shares

SLOTS = 1024


class SomeLog:
    """Only told from others here."""


def group_of(members: int) -> list[WantedSlots]:
    return [WantedSlots(SLOTS, tuple(range(n, SLOTS, members))) for n in range(members)]


@pytest.fixture
def shares() -> Shares:
    return Shares()


@pytest.fixture
def log() -> Any:
    return SomeLog()


def test_bits_stand_for_slots() -> None:
    chance = random.Random(1)
    for count in (1, 7, 8, 9, 1000, SLOTS):
        numbers = sorted(chance.sample(range(count), chance.randint(1, count)))
        wanted = WantedSlots(count, tuple(numbers))
        assert wanted.bits == sum(1 << n for n in numbers)
        assert flags_of(wanted.bits, count).tolist() == wanted.flags.tolist()


def test_a_reader_who_names_ever_other_slots_takes_little_memory(log: Any) -> None:
    pieces = SharedPieces()
    tracemalloc.start()
    try:
        for count in (SLOTS, SLOTS - 1):
            for n in range(400):
                pieces.note(log, WantedSlots(count, tuple(range(n, n + 500))))
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()


def test_no_more_than_a_number_of_shares_is_remembered(
    log: Any, shares: Shares, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one log and number of slots, and of all; and those of a group that reads stay."""
    monkeypatch.setattr(module, "_MOST_SHARES", 20)
    monkeypatch.setattr(module, "_MOST_OF_ALL", 100)
    group, others = group_of(4), [SomeLog() for _ in range(3)]
    counts = set()
    for n in range(1000):
        if n % 20 == 0:
            for member in group:
                shares.note(log, member)
        other: Any = others[n % 3]
        shares.note(other, WantedSlots(SLOTS - n % 7, (n,)))
        counts.add(len(shares))
    assert max(counts) == 100
    division = shares.division(log, SLOTS)
    assert [division.place_of(one.bits) for one in group] == [0, 1, 2, 3]
    other = others[0]
    for n in range(50):
        shares.note(other, WantedSlots(SLOTS, (n,)))
    division = shares.division(other, SLOTS)
    assert [n for n in range(50) if division.place_of(1 << n) is not None] == [*range(30, 50)]


def test_what_nobody_asks_for_any_more_is_forgotten(
    log: Any, shares: Shares, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(module, "monotonic", lambda: now)
    other: Any = SomeLog()
    shares.note(other, WantedSlots(8, (1,)))
    shares.note(log, WantedSlots(8, (1,)))
    now += 6
    shares.note(log, WantedSlots(8, (2,)))
    assert len(shares) == 3
    now += 6
    shares.note(log, WantedSlots(8, (3,)))
    assert len(shares) == 2
    division = shares.division(log, 8)
    assert [division.place_of(1 << n) for n in range(8)] == [None, None, 2, 3] + 4 * [None]
    assert shares.division(other, 8).place_of(1 << 1) is None


def test_of_shares_that_overlap_the_newest_counts(log: Any, shares: Shares) -> None:
    for member in group_of(2):
        shares.note(log, member)
    before = shares.division(log, SLOTS)
    for member in group_of(2):
        shares.note(log, member)
    assert shares.division(log, SLOTS) is before  # made once while the group stays as it is
    joined = group_of(3)
    for member in joined:
        shares.note(log, member)
    division = shares.division(log, SLOTS)
    assert [division.place_of(one.bits) for one in joined] == [0, 1, 2]
    assert [division.place_of(one.bits) for one in group_of(2)] == [None, None]


def test_a_division_holds_shares_that_do_not_overlap() -> None:
    chance = random.Random(2)
    for _ in range(50):
        count = chance.choice((1, 5, 64, 100))
        some = [
            sorted(chance.sample(range(count), chance.randint(1, min(count, 9)))) for _ in range(40)
        ]
        division = Division(count, [WantedSlots(count, tuple(one)).bits for one in some])
        free, places = set(range(count)), list(range(count))
        for numbers in some:
            fits = free.issuperset(numbers)
            if fits:
                free.difference_update(numbers)
                for number in numbers:
                    places[number] = numbers[0]
            bits = WantedSlots(count, tuple(numbers)).bits
            assert fits <= (division.place_of(bits) == numbers[0])
        assert division.places.tolist() == places


def test_a_piece_with_thousands_of_subjects_is_divided_in_one_step() -> None:
    """As a busy stream of many subjects has them: each batch names all of its own."""
    names = [b"orders.%04d" % n for n in range(3000)]
    whole = []
    for first in range(0, 12_000, 300):
        batch = encode_batch(
            base_offset=first,
            leader_epoch=1,
            commit_group=1,
            stamps=[(10**18, 300)],
            subjects=[names[n % len(names)] for n in range(first, first + 300)],
            values=[b"%d" % n for n in range(first, first + 300)],
        )
        whole.append(decode_batch(batch))
    members = [WantedSlots(64, tuple(range(n, 64, 16))) for n in range(16)]
    (part,) = _parts_of([*whole], Division(64, [one.bits for one in members]), 12_000)
    found = {}
    for member in members:
        records = part.of(member)
        assert len(records.subjects) < 400
        assert records.subject_ids is not None
        of_each = [records.subjects[n][0] for n in records.subject_ids.tolist()]
        values = map(int, records.values.items())
        found.update(zip(values, of_each, strict=True))
    assert found == {n: names[n % len(names)] for n in range(12_000)}
