"""A page that the disk does not give is damage like rot, wherever it lies: it costs the batches on
it and no more, each reader is told which offsets are gone, and none that was acked is used again.

The simulated disk answers as Linux does: a read gets the bytes before the page, and an error only
when it begins on it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from support.disks import simfs
from support.disks.logs import BASE_NS, DIRECTORY, Promises, check, create, encode, reopen
from support.disks.simfs import Fault, Keep, MachineStopped, SimFileSystem
from support.rounds import one_in
from support.worlds.crash_scenarios import SCENARIOS, Scenario, World, start

from liftlog.errors import CorruptBatch, CorruptMetadata, CorruptRange, StorageError
from liftlog.log import ActiveState, Log, LogConfig
from liftlog.log.files import unreadable
from liftlog.log.files.filesystem import read_whole
from liftlog.log.files.unreadable import content_end, read_around, readable_end
from liftlog.log.segment.index import index_path
from liftlog.log.segment.walk import find_new_damage
from liftlog.records import decode_batch, parse_header

PAGE = 256
KEEPS: list[Keep] = ["none", "some", "all", "last"]
CONFIG = LogConfig(segment_max_bytes=1 << 20, segment_max_age_ns=None)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use small pages, so that few bytes have many pages."""
    monkeypatch.setattr(unreadable, "PAGE_BYTES", PAGE)
    monkeypatch.setattr(simfs, "PAGE", PAGE)


# --- reading ---


def test_a_short_read_is_not_the_end_of_the_file() -> None:
    raw = bytes(range(200))
    calls: list[tuple[int, int]] = []

    def pread(length: int, position: int) -> bytes:
        calls.append((length, position))
        return raw[position : position + min(length, 7)]

    assert read_whole(pread, lambda: len(raw), 100, 20) == raw[20:120]
    assert len(calls) == 15
    assert read_whole(pread, lambda: len(raw), 100, 150) == raw[150:]
    assert read_whole(pread, lambda: len(raw), 100, 300) == b""
    with pytest.raises(OSError, match="returns 50 of 100 bytes"):
        read_whole(pread, lambda: 201, 100, 150)


def test_reading_around_pages() -> None:
    fs = SimFileSystem()
    path = DIRECTORY / "file"
    fs.make_directory(DIRECTORY)
    raw = random.Random(1).randbytes(10 * PAGE + 100)
    file = fs.open(path, create=True)
    file.pwritev([raw], 0)
    for page in (2, 3, 7, 10):
        fs.lose_page(path, page * PAGE)
    found = read_around(file, len(raw) + 500, 0)
    holes = [range(2 * PAGE, 4 * PAGE), range(7 * PAGE, 8 * PAGE), range(10 * PAGE, len(raw))]
    assert list(found.holes) == holes
    expected = bytearray(raw)
    for hole in holes:
        expected[hole.start : hole.stop] = bytes(len(hole))
    assert found.raw == expected
    part = read_around(file, 300, 2 * PAGE + 100)
    assert part.holes == (range(2 * PAGE + 100, 2 * PAGE + 400),)
    assert part.raw == bytes(300)
    with pytest.raises(OSError):
        file.pread(2 * PAGE + 1, 0)
    assert file.pread(2 * PAGE, 0) == raw[: 2 * PAGE]


def test_what_cannot_be_read_is_not_the_zeros_behind_the_data() -> None:
    fs = SimFileSystem()
    fs.make_directory(DIRECTORY)
    file = fs.open(DIRECTORY / "file", create=True)
    file.pwritev([b"x" * 100], 0)
    file.allocate(8 * PAGE)
    assert content_end(file, 0) == 100
    fs.lose_page(file.path, 5 * PAGE)
    assert content_end(file, 0) == 6 * PAGE
    assert content_end(file, 6 * PAGE) == 6 * PAGE
    assert readable_end(file, 0, 6 * PAGE) == 100
    assert readable_end(file, 104, 6 * PAGE) == 104


# --- recovery of the active segment ---


class Stored(NamedTuple):
    fs: SimFileSystem
    log: Log
    promises: Promises
    batches: list[tuple[int, int, range]]
    """(position, end, offsets) of each batch of the active segment."""
    points: list[ActiveState]
    """Possible states of a recovery point."""


def stored(sizes: list[list[int]]) -> Stored:
    """Return groups of batches, all synced and acked, in one active segment."""
    fs, promises = SimFileSystem(), Promises()
    log = create(fs, config=CONFIG)
    points = [log.checkpoint()]
    for group in sizes:
        batches, rows, offset = [], [], log.log_end_offset
        for count in group:
            values = [promises.value(offset + i, 20 + 60 * (i % 3)) for i in range(count)]
            batches.append(encode(log, values, first=offset))
            rows += list(enumerate(values, offset))
            offset += count
        log.append(batches)
        log.commit_up_to(log.sync())
        promises.acked.update(rows)
        promises.end = log.log_end_offset
        points.append(log.active_state())
    raw = fs.read(log.segments[-1].path)
    found, position = [], 0
    while position < log.segments[-1].size_bytes:
        header = parse_header(raw, position)
        offsets = range(header.base_offset, header.next_offset)
        found.append((position, position + header.length, offsets))
        position += header.length
    return Stored(fs, log, promises, found, points)


SIZES = [[1], [2, 1], [9], [1, 1, 1], [4], [12, 2], [1], [3], [1]]


def on_page(batches: list[tuple[int, int, range]], page: range) -> set[int]:
    """Return the offsets of the batches that are at least partly on the page."""
    return {
        offset
        for position, end, offsets in batches
        if position < page.stop and page.start < end
        for offset in offsets
    }


def read_carefully(log: Log) -> dict[int, bytes]:
    """Read like a consumer that checks its data and continues after reported damage."""
    found: dict[int, bytes] = {}
    offset = log.log_start_offset
    while True:
        try:
            piece = log.read(offset, 400)
        except CorruptRange as damage:
            if not offset <= damage.first_offset < damage.next_offset:
                raise AssertionError(f"a senseless range at {offset}") from damage
            log.quarantine_damage(damage.first_offset, damage.next_offset)
            offset = damage.next_offset
            continue
        if piece is None:
            return found
        with piece:
            raw, position = piece.pread(), 0
            while position < len(raw):
                try:
                    batch = decode_batch(raw, position)
                except CorruptBatch:  # quarantined by now: reading again from here tells the range
                    break
                for record in batch.trim(offset).records():
                    assert record.value is not None
                    found[record.offset] = record.value
                position += batch.header.length
                offset = batch.next_offset
            else:
                assert offset == piece.next_offset


def pages(one: Stored, boot: str) -> Iterator[tuple[SimFileSystem, range]]:
    """Yield the disk with each page of the data lost in turn; after a power cut without the
    slot."""
    path = one.log.segments[-1].path
    for position in range(0, one.batches[-1][1], PAGE):
        disk = one.fs.power_cut("all" if boot == "boot-1" else "none")
        yield disk, disk.lose_page(path, position)


@pytest.mark.parametrize("boot", ["boot-1", "boot-2"], ids=["kill", "power cut"])
@pytest.mark.parametrize("point", [0, 3, -1])
def test_each_page_of_the_active_segment(point: int, boot: str) -> None:
    """Above and below the recovery point: recovery or the first reader reads the page."""
    one = stored(SIZES)
    known = one.points[point]
    path = one.log.segments[-1].path
    told_nothing = 0
    for disk, page in pages(one, boot):
        before = disk.read(path)
        log, _ = reopen(disk, boot=boot, recovery_point=known, config=CONFIG)
        found = read_carefully(log)
        hit = on_page(one.batches, page)
        kept = {o: v for o, v in one.promises.acked.items() if o not in hit}
        assert found == kept, f"page {page}"
        assert log.log_end_offset >= one.promises.end
        assert all(log.is_quarantined(offset, offset + 1) for offset in hit)
        told_nothing += not hit
        size = one.batches[-1][1]
        assert disk.read(path)[:size] == before[:size], "something of it was cut or written over"
        # Once more, and the same; what is appended then gets offsets of its own.
        again, _ = reopen(disk.kill(), boot=boot, recovery_point=known, config=CONFIG)
        assert read_carefully(again) == kept
        assert again.log_end_offset >= log.log_end_offset
        first = again.log_end_offset
        values = [one.promises.value(first), one.promises.value(first + 1)]
        again.append([encode(again, values)])
        again.commit_up_to(again.sync())
        more = dict(enumerate(values, first))
        assert read_carefully(again) == kept | more
        last, _ = reopen(disk.power_cut("none"), boot="boot-3", config=CONFIG)
        assert read_carefully(last) == kept | more
    assert told_nothing == 0


@pytest.mark.parametrize("boot", ["boot-1", "boot-2"], ids=["kill", "power cut"])
def test_two_pages_of_the_active_segment(boot: str) -> None:
    """Also with the second page in the space allocated ahead, which loses no further record."""
    one = stored(SIZES)
    path = one.log.segments[-1].path
    end, allocated = one.batches[-1][1], len(one.fs.read(path))
    behind = [end // PAGE * PAGE + PAGE, allocated - 1]
    assert behind[0] < behind[1]
    costs = []
    for disk, page in pages(one, boot):
        for position in [*range(page.stop, end, 3 * PAGE), *behind]:
            image = disk.power_cut("all")
            hit = on_page(one.batches, page)
            hit |= on_page(one.batches, image.lose_page(path, position))
            log, _ = reopen(image, boot=boot, config=CONFIG)
            found = read_carefully(log)
            assert found.items() <= one.promises.acked.items()
            gone = one.promises.acked.keys() - found.keys()
            assert gone >= hit
            assert all(log.is_quarantined(offset, offset + 1) for offset in gone)
            assert log.log_end_offset >= one.promises.end
            costs.append(len(gone - hit))
    assert sum(costs) == 0, costs


def test_a_page_behind_the_data_hides_nothing_of_what_recovery_trusts() -> None:
    one = stored(SIZES)
    active = one.log.segments[-1].path
    for disk, page in pages(one, "boot-1"):
        disk.lose_page(active, len(disk.read(active)) - 1)
        found = find_new_damage(disk, active.parent, one.log.view.manifest, one.log.active_state())
        gone = {offset for bad in found for offset in range(bad.first_offset, bad.next_offset)}
        assert gone == on_page(one.batches, page)


def test_a_tail_that_was_not_acked_is_cut_without_its_page() -> None:
    """The slot shows this after a kill. The page is neither cut nor written."""
    one = stored(SIZES)
    log = one.log
    end, size = log.log_end_offset, log.segments[-1].size_bytes
    waiting = [one.promises.value(end + i, 200) for i in range(8)]
    log.append([encode(log, waiting)])
    path = log.segments[-1].path
    for position in range(size, log.segments[-1].size_bytes, PAGE):
        disk = one.fs.power_cut("all")
        page = disk.lose_page(path, position)
        if page.start < size:
            continue
        again, report = reopen(disk, config=CONFIG)
        assert read_carefully(again) == one.promises.acked
        assert again.log_end_offset == end
        assert report.cut_bytes
        again.append([encode(again, [one.promises.value(end)])])
        again.commit_up_to(again.sync())
        assert len(read_carefully(again)) == len(one.promises.acked) + 1


@pytest.mark.parametrize("boot", ["boot-1", "boot-2"], ids=["kill", "power cut"])
@pytest.mark.parametrize("place", [0.0, 0.6, 1.0])
def test_the_machine_stops_at_any_operation_of_the_recovery_or_of_a_quarantine(
    place: float, boot: str
) -> None:
    one = stored(SIZES)
    path, end = one.log.segments[-1].path, one.batches[-1][1]
    position = int(place * (end - 1))

    def lost() -> tuple[SimFileSystem, set[int]]:
        disk = one.fs.power_cut("all" if boot == "boot-1" else "none")
        return disk, on_page(one.batches, disk.lose_page(path, position))

    def run(disk: SimFileSystem) -> None:
        """Start, and read the page unless the start has read it."""
        log, _ = reopen(disk, boot=boot, recovery_point=one.points[3], config=CONFIG)
        read_carefully(log)

    disk, hit = lost()
    run(disk)
    kept = {o: v for o, v in one.promises.acked.items() if o not in hit}
    assert disk.operations > 3
    for stop_at in one_in(3, range(disk.operations), f"{place} {boot}"):
        for keep in KEEPS:
            image, _ = lost()
            image.stop_at = stop_at
            with pytest.raises(MachineStopped):
                run(image)
            again = image.power_cut(keep, stop_at)
            log, _ = reopen(again, boot="boot-3", recovery_point=one.points[3], config=CONFIG)
            assert read_carefully(log) == kept
            assert all(log.is_quarantined(offset, offset + 1) for offset in hit)
            assert log.log_end_offset >= one.promises.end


def test_a_lost_end_is_told_when_retention_has_reached_it() -> None:
    """The segment before it is deleted, and the log starts with the loss."""
    one = stored(SIZES)
    disk = one.fs.power_cut("none")
    disk.lose_page(one.log.segments[-1].path, one.batches[-1][0])
    log, _ = reopen(disk, boot="boot-2", config=CONFIG)
    [bad] = log.view.manifest.quarantined
    assert bad.first_offset <= one.batches[-1][2][0]
    log.append([encode(log, [one.promises.value(log.log_end_offset)])])
    log.commit_up_to(log.sync())
    log.structure.remove_before(bad.first_offset, 1)
    assert (log.log_start_offset, log.segments[0].base_offset) == (
        bad.first_offset,
        bad.next_offset,
    )
    with pytest.raises(CorruptRange) as told:
        log.read(bad.first_offset, 1000)
    assert (told.value.first_offset, told.value.next_offset) == (bad.first_offset, bad.next_offset)
    assert list(read_carefully(log)) == [bad.next_offset]


# --- short reads, and the small files ---


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_short_reads_alone_lose_nothing(scenario: Scenario) -> None:
    world = World()
    world.fs.short_reads = random.Random(3)
    scenario(world, "fsync")
    for image, boot in ((world.fs.power_cut("some", 1), "boot-2"), (world.fs.kill(), "boot-1")):
        assert image.short_reads is not None
        log, _ = start(image, boot)
        check(log, world.promises)
        told = [bad for bad in log.view.manifest.quarantined if bad.is_loss]
        assert not told or "quarantine" in scenario.__name__


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_small_file_that_cannot_be_read(scenario: Scenario) -> None:
    """All of them are dispensable, but without both copies of its manifest a stream is not
    changed."""
    world = World()
    scenario(world, "fsync")
    seen = set()
    for boot in ("boot-1", "boot-2"):
        for path in world.fs.files():
            image = world.fs.power_cut("none")
            if path.suffix == ".log" or not image.exists(path) or not image.read(path):
                continue
            for position in range(0, len(image.read(path)), PAGE):
                image.lose_page(path, position)
            seen.add(path.name if path.suffix != ".index" else "index")
            log, _ = start(image, boot)
            check(log, world.promises)
            log.close()
    image = world.fs.power_cut("none")
    for name in ("manifest", "manifest.copy"):
        image.lose_page(DIRECTORY / name, 0)
    with pytest.raises(CorruptMetadata, match="cannot be read from the disk"):
        start(image, "boot-2")
    assert "manifest" in seen


def test_the_index_of_a_sealed_segment_is_made_anew() -> None:
    one = stored(SIZES)
    one.log.writer.roll()
    fs = one.fs.power_cut("none")
    path = index_path(one.log.segments[0].path)
    fs.lose_page(path, 0)
    log, _ = reopen(fs, boot="boot-2", config=CONFIG)
    assert read_carefully(log) == one.promises.acked
    assert fs.read(path) == one.fs.read(path)
    assert log.offset_for_timestamp(BASE_NS) == 1


def test_an_empty_segment_that_cannot_be_cut_back_is_left() -> None:
    """Otherwise the remaining bytes of a refused group would follow the next group and continue
    it."""
    fs, promises = SimFileSystem(), Promises()
    log = create(fs)
    first = log.segments[-1].path
    batches = [encode(log, [b"refused"], first=1), encode(log, [b"refused"], first=2)]
    fs.faults = [
        Fault("write", path=first.name, short=sum(len(batch.data) for batch in batches)),
        Fault("write", path=first.name),
        Fault("truncate", path=first.name, times=10),
    ]
    with pytest.raises(StorageError):
        log.append([*batches, encode(log, [b"refused"], first=3)])
    log.append([encode(log, [b"granted"], first=1)])
    log.commit_up_to(log.sync())
    assert log.segments[-1].path != first
    promises.acked = {1: b"granted"}
    promises.written = {1: {b"granted"}}
    for image, boot in ((fs.power_cut("all"), "boot-2"), (fs.kill(), "boot-1")):
        image.faults = []
        again, _ = reopen(image, boot=boot)
        assert check(again, promises) == {1: b"granted"}
        assert again.log_end_offset == 2
