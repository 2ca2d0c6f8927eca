"""The files with the offsets of erased records, and the set that they hold."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap
from support.disks.simfs import PAGE, Fault, SimFileSystem
from support.rounds import examples

from liftlog.errors import CorruptMetadata
from liftlog.log.erased import ErasedSet, clip, read_listed
from liftlog.log.files.erased_file import (
    CHUNK_OFFSETS,
    ErasedEntry,
    find_erased_files,
    read_erased_file,
    write_erased_file,
)

DIRECTORY = Path("/data/streams/orders")
BASES = [0, 1, 5000, CHUNK_OFFSETS - 3, CHUNK_OFFSETS, 7 * CHUNK_OFFSETS + 11]
offsets = st.builds(
    lambda base, more: base + more,
    st.sampled_from(BASES),
    st.integers(0, 40) | st.integers(0, 9000),
)


def disk() -> SimFileSystem:
    fs = SimFileSystem()
    fs.make_directory(DIRECTORY)
    return fs


def written(fs: SimFileSystem, *relative: int, chunk: int = 3, number: int = 9) -> ErasedEntry:
    return write_erased_file(fs, DIRECTORY, chunk, BitMap(relative), number, "incarnation")


# --- files ---


@pytest.mark.parametrize(
    "relative", [(0,), (5,), (7, 8, 9, 70_000), (CHUNK_OFFSETS - 1,), tuple(range(100, 9000))]
)
def test_a_file_holds_its_offsets_twice(relative: tuple[int, ...]) -> None:
    fs = disk()
    entry = written(fs, *relative)
    base = 3 * CHUNK_OFFSETS
    assert (entry.first_offset, entry.next_offset) == (base + relative[0], base + relative[-1] + 1)
    assert entry.count == len(relative)
    assert entry.file_name == f"{base + relative[0]:020d}.9.erased"
    raw = fs.read(DIRECTORY / entry.file_name)
    half = raw[: entry.size_bytes]
    second = -(-entry.size_bytes // 4096) * 4096
    assert raw[second:] == half
    assert not any(raw[entry.size_bytes : second])
    found = read_erased_file(fs, DIRECTORY, entry)
    assert (found.bits, found.problem) == (BitMap(relative), "")


def test_the_bytes_of_a_half() -> None:
    """As in the reference of the storage format."""
    fs = disk()
    entry = written(fs, 5, 6, 9, chunk=0, number=2)
    half = fs.read(DIRECTORY / entry.file_name)[: entry.size_bytes]
    assert half[:8] == b"LERA\x01\x00\x00\x00"
    assert half[8:16] == (5).to_bytes(8, "little")
    assert half[16:24] == (3).to_bytes(8, "little")
    assert half[24:32] == (len(half) - 64).to_bytes(8, "little")
    assert not any(half[40:60])
    assert BitMap.deserialize(half[64:]) == BitMap([0, 1, 4])


def test_one_intact_half_is_enough() -> None:
    for half in (0, 1):
        fs = disk()
        entry = written(fs, 4, 5, 80)
        path = DIRECTORY / entry.file_name
        whole = fs.read(path)
        for at in range(0, entry.size_bytes, 7):
            raw = bytearray(whole)
            raw[4096 * half + at] ^= 0x10
            fs.replace(path, bytes(raw))
            found = read_erased_file(fs, DIRECTORY, entry)
            assert found.bits == BitMap([4, 5, 80])
            assert "one half" in found.problem


def test_a_page_that_the_disk_does_not_give_costs_one_half() -> None:
    for position in (0, 4096):
        fs = disk()
        entry = written(fs, 4, 5, 80)
        fs.lose_page(DIRECTORY / entry.file_name, position)
        assert read_erased_file(fs, DIRECTORY, entry).bits == BitMap([4, 5, 80])
    assert PAGE == 4096


def test_without_an_intact_half_nobody_knows() -> None:
    fs = disk()
    entry = written(fs, 4, 5, 80)
    path = DIRECTORY / entry.file_name
    whole = fs.read(path)
    broken = bytearray(whole)
    broken[70] ^= 1
    broken[4096 + 10] ^= 1
    neighbour = written(fs, 4, 5, 81, number=10)
    other = fs.read(DIRECTORY / neighbour.file_name)
    for raw in (bytes(broken), b"", whole[:50], other):
        fs.replace(path, raw)
        erased, problems = read_listed(fs, DIRECTORY, (entry,))
        assert erased is not None
        assert erased.unreadable == (entry,)
        assert len(problems) == 1
    fs.unlink(path)
    erased, problems = read_listed(fs, DIRECTORY, (entry,))
    assert erased is not None
    assert erased.next_at(0) == entry.first_offset
    with pytest.raises(CorruptMetadata):
        erased.check_readable(entry.next_offset - 1, entry.next_offset + 5)
    erased.check_readable(entry.next_offset, entry.next_offset + 5)


def test_a_failure_that_passes_is_no_damage() -> None:
    fs = disk()
    entry = written(fs, 4)
    fs.faults = [Fault("open", error=24, path=".erased")]
    with pytest.raises(OSError, match="injected"):
        read_listed(fs, DIRECTORY, (entry,))


def test_offsets_from_the_end_on_do_not_count() -> None:
    fs = disk()
    entry = written(fs, 4, 5, 80, chunk=0)
    listed, erased = clip((entry,), ErasedSet.of_ranges([(4, 6), (80, 81)]), 0, 5)
    assert listed[0].file_name == entry.file_name
    assert listed[0].next_offset == 5
    assert erased == ErasedSet.of_ranges([(4, 5)])
    again, problems = read_listed(fs, DIRECTORY, listed)
    assert (again, problems) == (erased, [])
    assert clip((entry,), erased, 81, 200) == ((), None)
    assert clip((entry,), erased, 0, 4) == ((), None)
    assert clip((entry,), erased, 6, 100) == ((entry,), erased)


def test_files_are_found_without_a_manifest() -> None:
    fs = disk()
    one = written(fs, 4, 5, 80)
    two = written(fs, 1, 900, number=11)
    fs.replace(DIRECTORY / two.file_name, b"x" + fs.read(DIRECTORY / two.file_name)[1:])
    alien = write_erased_file(fs, DIRECTORY, 0, BitMap([1]), 2, "another")
    assert find_erased_files(fs, DIRECTORY, "incarnation")[0] == [two, one]
    assert find_erased_files(fs, DIRECTORY, None)[0] == [alien, two, one]
    fs.replace(DIRECTORY / one.file_name, b"damaged")
    found, notes = find_erased_files(fs, DIRECTORY, "incarnation")
    bad = found[1]
    assert (bad.first_offset, bad.next_offset) == (one.first_offset, 4 * CHUNK_OFFSETS)
    assert len(notes) == 2  # the damaged one, and that of another stream
    assert read_erased_file(fs, DIRECTORY, bad).bits is None


# --- the set ---


def of(numbers: set[int]) -> ErasedSet:
    return ErasedSet.of_offsets(np.array(sorted(numbers), np.int64))


@settings(max_examples=examples(4))
@given(st.sets(offsets), st.sets(offsets), offsets, st.integers(0, 10_000))
def test_the_set_beside_a_python_set(mine: set[int], theirs: set[int], at: int, more: int) -> None:
    one, other = of(mine), of(theirs)
    end = at + more
    inside = sorted(x for x in mine if at <= x < end)
    assert len(one) == len(mine)
    assert one.count_in(at, end) == len(inside)
    assert one.offsets_in(at, end).tolist() == inside
    assert one.within(at, end) == of(set(inside))
    assert one.next_at(at) == min((x for x in mine if x >= at), default=None)
    assert one.next_not_at(at) == next(x for x in range(at, at + len(mine) + 1) if x not in mine)
    assert one.end_offset == max(mine, default=-1) + 1
    assert (one | other, one & other, one - other) == (
        of(mine | theirs), of(mine & theirs), of(mine - theirs),
    )  # fmt: skip
    ranges = one.ranges()
    assert ErasedSet.of_ranges(ranges) == one
    assert all(a[1] < b[0] for a, b in pairwise(ranges))
    assert ErasedSet.from_plain(one.to_plain()) == one
    assert bool(one) == bool(mine)


def test_a_set_of_whole_chunks() -> None:
    erased = ErasedSet.of_ranges([(5, 3 * CHUNK_OFFSETS + 2)])
    assert erased.next_not_at(7) == 3 * CHUNK_OFFSETS + 2
    assert len(erased) == 3 * CHUNK_OFFSETS - 3
    assert erased.ranges() == [(5, 3 * CHUNK_OFFSETS + 2)]
    assert sum(len(text) for _, text in erased.to_plain()) < 40_000
