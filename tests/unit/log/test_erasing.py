"""Erasing records of a log: the times of durability, the state after a stop, and the removal by a
rewrite."""

from __future__ import annotations

import errno
import logging

import pytest
from support.disks.logs import DIRECTORY, SMALL, create, reopen
from support.disks.simfs import Fault, Keep, MachineStopped, SimFileSystem
from support.worlds.log_model import readable
from support.worlds.rewriting import (
    MINUTE_NS,
    Rows,
    add,
    compact_once,
    encode_rows,
    keyed,
    plain_erased,
    rebatch_file,
    row,
    stored,
)

from liftlog.errors import CorruptMetadata, CorruptRange, DiskFull, StorageError
from liftlog.log import Log, erasing
from liftlog.log.erased import ErasedSet
from liftlog.log.files.checkpoint_file import parse_checkpoint
from liftlog.log.files.erased_file import is_erased_name
from liftlog.log.files.manifest import read_manifest
from liftlog.log.offline.rebuild import rebuild_manifest
from liftlog.log.rewrite import RebatchJob, apply_rebatch, rebatch
from liftlog.records import iter_batches
from liftlog.records.columns import cutting

KEEPS: list[Keep] = ["none", "some", "all", "last"]


def filled(fs: SimFileSystem, batches: int = 12) -> tuple[Log, Rows]:
    log = create(fs)
    rows: Rows = {}
    for number in range(batches):
        rows |= add(log, [[row(b"k%d" % number, b"%d.%d" % (number, i) * 9) for i in range(5)]])
    return log, rows


def add_uncommitted(log: Log) -> None:
    log.append(encode_rows(log, [[row(None, b"later")] * 3])[0])


def erase(log: Log, *ranges: tuple[int, int]) -> list[int]:
    found = log.structure.erase(ErasedSet.of_ranges(ranges))
    assert not found.unreadable
    return found.offsets.offsets_in(0, 2**40).tolist()  # type: ignore[no-any-return]


def without(rows: Rows, *ranges: tuple[int, int]) -> Rows:
    return {o: r for o, r in rows.items() if not any(a <= o < b for a, b in ranges)}


def erased_files(fs: SimFileSystem) -> list[str]:
    return [name for name in fs.list_directory(DIRECTORY) if is_erased_name(name)]


def version(fs: SimFileSystem, name: str = "manifest") -> bytes:
    return fs.read(DIRECTORY / name).split()[2]


def test_a_log_that_erased_nothing_is_as_before() -> None:
    fs = SimFileSystem()
    log, rows = filled(fs)
    before = fs.read(DIRECTORY / "manifest")
    assert erase(log, (1000, 2000)) == []
    assert fs.read(DIRECTORY / "manifest") == before
    assert log.view.erased is None
    assert version(fs) == b"1"
    assert b"erased" not in before
    assert stored(log) == rows


def test_erased_records_are_hidden_at_once_and_after_every_start() -> None:
    fs = SimFileSystem()
    log, rows = filled(fs)
    assert erase(log, (3, 4), (20, 31), (59, 99)) == [3, *range(20, 31), 59, 60]
    left = without(rows, (3, 4), (20, 31), (59, 99))
    assert stored(log) == left
    assert log.view.record_count == len(left)
    assert (version(fs), version(fs, "manifest.copy")) == (b"2", b"2")
    assert erase(log, (1, 6)) == [1, 2, 4, 5]
    assert erase(log, (1, 6)) == []
    left = without(left, (1, 6))
    for image in (fs.power_cut("none"), fs.kill()):
        again, _ = reopen(image)
        assert stored(again) == left
        assert again.view.erased == log.view.erased
    state = log.close()
    again, report = reopen(fs.kill(), clean=state)
    assert report.clean
    assert stored(again) == left


def test_only_committed_records_that_exist_are_erased() -> None:
    fs = SimFileSystem()
    log, _ = filled(fs, 4)
    log.structure.remove_before(7, 0)
    assert erase(log, (0, 9), (19, 40)) == [7, 8, 19, 20]
    assert log.view.record_count == 10
    log.writer.roll()
    add_uncommitted(log)
    assert erase(log, (15, 40)) == [15, 16, 17, 18]


def test_every_stop_leaves_all_of_an_erasure_or_nothing() -> None:
    """The next start also leaves only files that the manifest lists."""
    steps = _stopped(None)[0].operations
    outcomes = set()
    for stop_at in range(steps + 1):
        fs, rows, wanted = _stopped(stop_at)
        for keep in KEEPS:
            image = fs.power_cut(keep, stop_at)
            log, _ = reopen(image, boot="boot-2")
            found = readable(log)
            before = without(rows, (9, 11))
            after = without(before, *wanted)
            assert found in (before, after), (stop_at, keep)
            if not fs.stopped:
                assert found == after
            outcomes.add(found == after)
            listed = {entry.file_name for entry in log.view.manifest.erased}
            assert set(erased_files(image)) == listed
            # A later start finds the same records.
            again, _ = reopen(image.power_cut("none"), boot="boot-3")
            assert readable(again) == found
    assert outcomes == {True, False}


def _stopped(stop_at: int | None) -> tuple[SimFileSystem, Rows, list[tuple[int, int]]]:
    """Make an erasure that stops at its n-th operation."""
    fs = SimFileSystem()
    log, rows = filled(fs)
    erase(log, (9, 11))
    wanted = [(12, 14), (40, 58)]
    start = fs.operations
    if stop_at is not None:
        fs.stop_at = start + stop_at
    try:
        erase(log, *wanted)
    except MachineStopped:
        pass
    fs.operations -= start
    return fs, rows, wanted


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("operation", ["create", "write", "fsync", "fsync-directory", "rename"])
def test_a_failed_erasure_hides_nothing_and_the_next_one_works(operation: str, error: int) -> None:
    for countdown in range(1, 7):
        for after in (False, True):
            fs = SimFileSystem()
            log, rows = filled(fs)
            erase(log, (9, 11))
            left = without(rows, (9, 11))
            fs.faults = [Fault(operation, error=error, countdown=countdown, after=after)]
            try:
                erase(log, (12, 14))
            except (StorageError, DiskFull):
                assert stored(log) == left
            else:
                left = without(left, (12, 14))
                assert stored(log) == left
            fs.faults = []
            assert erase(log, (12, 15)) == ([12, 13, 14] if 12 in left else [14])
            log.writer.roll()
            again, _ = reopen(fs.power_cut("none"))
            assert readable(again) == without(left, (12, 15))
            listed = {entry.file_name for entry in again.view.manifest.erased}
            assert set(erased_files(fs.kill())) >= listed


def test_many_erasures_need_few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasing, "MOST_FILES_PER_CHUNK", 3)
    fs = SimFileSystem()
    log, rows = filled(fs)
    for offset in range(2, 50, 2):
        erase(log, (offset, offset + 1))
        assert len(erased_files(fs)) == len(log.view.manifest.erased) <= 3
    again, _ = reopen(fs.power_cut("none"))
    assert stored(again) == {o: r for o, r in rows.items() if o % 2 or o >= 50}


def test_offsets_that_are_assigned_again_are_not_erased() -> None:
    fs = SimFileSystem()
    log, rows = filled(fs)
    erase(log, (10, 60))
    log.truncate_suffix(31)
    rows = {o: r for o, r in rows.items() if o < 31}
    rows |= add(log, [[row(b"new", b"value")] * 9])
    left = without(rows, (10, 31))
    assert stored(log) == left
    assert log.view.record_count == len(left)
    again, _ = reopen(fs.power_cut("none"))
    assert stored(again) == left
    again.start_over(5)
    assert again.view.erased is None
    assert not erased_files(again.environment.fs)  # type: ignore[arg-type]
    rows = add(again, [[row(b"new", b"value")] * 40])
    assert stored(again) == rows


def test_retention_drops_the_files_that_it_passes() -> None:
    fs = SimFileSystem()
    log, rows = filled(fs)
    erase(log, (2, 5))
    erase(log, (3, 6), (40, 42))
    assert len(erased_files(fs)) == 2
    second = log.segments[2].base_offset
    log.structure.remove_before(second, 2)
    assert [one.next_offset for one in log.view.manifest.erased] == [42]
    assert len(erased_files(fs)) == 1
    assert stored(log) == without({o: r for o, r in rows.items() if o >= second}, (40, 42))
    log.structure.remove_before(log.high_watermark, len(log.segments))
    log.writer.roll()
    log.structure.remove_before(log.high_watermark, len(log.segments))
    assert log.view.erased is None
    assert (erased_files(fs), version(fs)) == ([], b"1")


def test_a_rewrite_removes_the_bytes_and_then_the_offsets() -> None:
    fs = SimFileSystem()
    log, rows = filled(fs)
    log.writer.roll()
    erase(log, (1, 4), (40, 46))
    secret = rows[41].value
    assert secret is not None
    for number in range(len(log.segments) - 1):
        rebatch_file(log, fs, number)
    assert log.view.erased is None
    assert version(fs) == b"1"
    assert not erased_files(fs)
    files = [fs.read(DIRECTORY / name) for name in fs.list_directory(DIRECTORY)]
    assert not any(secret in raw for raw in files)
    left = without(rows, (1, 4), (40, 46))
    assert stored(log) == left
    assert log.view.record_count == len(left)
    assert stored(reopen(fs.power_cut("none"))[0]) == left


def test_what_is_erased_during_a_rewrite_stays_erased() -> None:
    """nimtable/iceberg-compaction#163: a delete between plan and swap came back."""
    fs = SimFileSystem()
    log, rows = filled(fs)
    log.writer.roll()
    erase(log, (2, 3))
    job = RebatchJob(
        str(DIRECTORY), log.segments[0].entry(), incarnation=log.incarnation,
        epochs=log.view.manifest.epochs, erased=plain_erased(log),
    )  # fmt: skip
    result = rebatch(job, fs)
    erase(log, (3, 5))
    apply_rebatch(log, result, erased=job.erased)
    assert log.view.erased == ErasedSet.of_ranges([(3, 5)])
    assert stored(log) == without(rows, (2, 5))
    assert stored(reopen(fs.power_cut("none"))[0]) == without(rows, (2, 5))


def test_an_erased_record_still_supersedes_older_ones() -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    rows = add(log, [[row(b"a", b"old"), row(b"b", b"1")], [row(b"a", b"new"), row(b"b", b"2")]])
    log.writer.roll()
    erase(log, (3, 4))
    assert {r.value for r in stored(log).values()} == {b"old", b"1", b"2"}
    compact_once(log, fs, now_ns=rows[1].timestamp_ns + 2 * MINUTE_NS)
    assert {r.value for r in stored(log).values()} == {b"2"}
    assert log.view.erased is None
    assert log.view.record_count == 1


def test_a_record_that_a_compaction_dropped_leaves_the_set() -> None:
    """It was erased after the pass was planned, and no longer counts."""
    fs = SimFileSystem()
    log = keyed(fs)
    add(log, [[row(b"a", b"old"), row(b"b", b"1")], [row(b"a", b"new"), row(b"c", b"2")]])
    log.writer.roll()
    from support.worlds.rewriting import plan

    from liftlog.log.rewrite import apply_compaction, compact

    job = plan(log)
    assert job is not None
    result = compact(job, fs)
    erase(log, (1, 3))
    apply_compaction(log, result, erased=job.erased)
    assert log.view.erased == ErasedSet.of_ranges([(2, 3)])
    assert log.view.record_count == len(stored(log)) == 2


def test_damage_in_a_batch_with_an_erased_record_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """The bytes of such a batch never leave the log unchanged."""
    caplog.set_level(logging.CRITICAL, "liftlog.log")
    fs = SimFileSystem()
    log, rows = filled(fs, 3)
    erase(log, (7, 8))
    path = log.segments[0].path
    raw = bytearray(fs.read(path))
    batches = list(iter_batches(bytes(raw[: log.segments[0].size_bytes])))
    raw[len(batches[0].stored) + len(batches[1].stored) - 9] ^= 1
    fs.replace(path, bytes(raw))
    log.environment.pool.forget_directory(DIRECTORY)
    with pytest.raises(CorruptRange) as damage:
        log.read(6, 1000)
    assert (damage.value.first_offset, damage.value.next_offset) == (6, 11)
    log.quarantine_damage(6, 11)
    assert readable(log) == without(rows, (6, 11))
    assert log.view.record_count == 10, "7 counts once: it is erased and lost"
    found = log.structure.erase(ErasedSet.of_ranges([(1, 12)]))
    assert found.offsets.offsets_in(0, 99).tolist() == [*range(1, 6), 11]
    assert found.unreadable == ((6, 11),)
    assert readable(log) == without(rows, (1, 12))


def test_without_the_file_no_record_of_its_range_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "liftlog.log")
    fs = SimFileSystem()
    log, rows = filled(fs)
    erase(log, (12, 13), (14, 15))
    erase(log, (41, 42))
    entry = log.view.manifest.erased[0]
    good = fs.read(DIRECTORY / entry.file_name)
    log.close()
    fs.unlink(DIRECTORY / entry.file_name)
    log, report = reopen(fs.kill())
    assert any(entry.file_name in event for event in report.events)
    piece = log.read(1, 1 << 20)
    assert piece is not None
    with piece:
        assert piece.next_offset <= 12
    with pytest.raises(CorruptMetadata) as unknown:
        log.read(11, 1 << 20)
    assert (unknown.value.details["first_offset"], unknown.value.details["next_offset"]) == (12, 15)
    piece = log.read(16, 1 << 20)
    assert piece is not None
    piece.release()
    assert erase(log, (45, 46)) == [45]
    # Put back, it counts again.
    image = fs.kill()
    file = image.open(DIRECTORY / entry.file_name, create=True)
    file.pwritev([good], 0)
    file.close()
    again, _ = reopen(image)
    assert readable(again) == without(rows, (12, 13), (14, 15), (41, 42), (45, 46))


def test_a_read_decompresses_few_batches_with_erased_records() -> None:
    """The event loop waits for it, and a publisher chooses how well its values compress."""
    fs = SimFileSystem()
    log = keyed(fs)
    batches = [[row(b"k", bytes(60_000))] * 4 for _ in range(20)]
    rows = add(log, batches, compression="zstd")
    erase(log, *((first + 1, first + 2) for first in range(1, 80, 4)))
    piece = log.read(1, 1 << 20)
    assert piece is not None
    with piece:
        assert sum(len(batch.raw) for batch in iter_batches(piece.pread())) < 1300 * 1024
    assert stored(log) == without(rows, *((first + 1, first + 2) for first in range(1, 80, 4)))


def test_wholly_erased_batches_are_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    rows = add(log, [[row(b"k", b"v")] * 5] * 40)
    erase(log, (3, 199))
    cut: list[object] = []
    fill_header = cutting.fill_header

    def counted(batch: bytearray, **fields: int) -> None:
        cut.append(batch)
        fill_header(batch, **fields)

    monkeypatch.setattr(cutting, "fill_header", counted)
    piece = log.read(1, 1 << 20)
    assert piece is not None
    with piece:
        assert piece.next_offset == 201
        found = [o for batch in iter_batches(piece.pread()) for o in batch.offsets()]
    assert found == [1, 2, 199, 200]
    assert len(cut) == 2
    monkeypatch.undo()
    assert stored(log) == without(rows, (3, 199))


def test_an_older_program_refuses_the_manifest() -> None:
    fs = SimFileSystem()
    log, _ = filled(fs)
    erase(log, (3, 4))
    raw = fs.read(DIRECTORY / "manifest")
    with pytest.raises(Exception, match="format version 2, 1 is known"):
        parse_checkpoint(raw, "manifest", "manifest", newest=1)
    manifest = read_manifest(fs, DIRECTORY)
    assert manifest is not None
    assert manifest.erased == log.view.manifest.erased


def test_small_segments_are_used() -> None:
    fs = SimFileSystem()
    assert len(filled(fs)[0].segments) > 3
    assert SMALL.segment_max_bytes == 1200


@pytest.mark.parametrize("knows_incarnation", [False, True])
def test_a_repair_without_a_manifest_finds_the_erased_files(knows_incarnation: bool) -> None:
    fs = SimFileSystem()
    log, rows = filled(fs)
    erase(log, (12, 14))
    erase(log, (13, 20), (40, 41))
    states = [log.checkpoint()] if knows_incarnation else []
    log.close()
    for name in ("manifest", "manifest.copy"):
        fs.unlink(DIRECTORY / name)
    made = rebuild_manifest(fs, DIRECTORY, states, {})
    assert made is not None
    assert (made.manifest.incarnation == log.incarnation) == knows_incarnation
    made.manifest.write(fs, DIRECTORY)
    again, _ = reopen(fs.kill())
    assert readable(again) == without(rows, (12, 20), (40, 41))


def test_no_listed_file_is_written_again_after_a_repair() -> None:
    """A stop or a full disk during the write would damage the only copy."""
    fs = SimFileSystem()
    log, rows = filled(fs)
    for first in range(12, 20):
        erase(log, (first, first + 1))
    log.close()
    for name in ("manifest", "manifest.copy"):
        fs.unlink(DIRECTORY / name)
    made = rebuild_manifest(fs, DIRECTORY, [], {})
    assert made is not None
    made.manifest.write(fs, DIRECTORY)
    log, _ = reopen(fs.kill())
    newest = max(one.number for one in log.view.manifest.erased)
    for first in range(20, 40):
        sequence = log.view.manifest.sequence
        assert sequence >= newest, "the next file gets a name with a higher number"
        erase(log, (first, first + 1))
    assert readable(log) == without(rows, (12, 40))


def test_a_repair_does_not_show_what_a_damaged_file_may_hide(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, "liftlog.log")
    fs = SimFileSystem()
    log, rows = filled(fs)
    erase(log, (12, 14))
    (entry,) = log.view.manifest.erased
    log.close()
    fs.replace(DIRECTORY / entry.file_name, b"damaged")
    for name in ("manifest", "manifest.copy"):
        fs.unlink(DIRECTORY / name)
    made = rebuild_manifest(fs, DIRECTORY, [], {})
    assert made is not None
    assert any(entry.file_name in note for note in made.notes)
    made.manifest.write(fs, DIRECTORY)
    again, _ = reopen(fs.kill())
    with again.read(1, 1 << 20) as piece:  # type: ignore[union-attr]
        assert piece.next_offset <= 12
    with pytest.raises(CorruptMetadata):
        again.read(11, 1 << 20)
    # Without the file, everything is shown again.
    image = fs.kill()
    image.unlink(DIRECTORY / entry.file_name)
    made = rebuild_manifest(image, DIRECTORY, [], {})
    assert made is not None
    made.manifest.write(image, DIRECTORY)
    assert readable(reopen(image.kill())[0]) == rows


def test_clean_stretches_are_not_copied() -> None:
    """Each slice with erased records ends before the next long stretch without erased records,
    which is sent from the file."""
    fs = SimFileSystem()
    log = keyed(fs)
    rows = add(log, [[row(b"k", bytes(1000))] * 40 for _ in range(100)])
    log.writer.roll()
    gone = [(100, 101), (140, 141), (2000, 2001), (3990, 3991)]
    erase(log, *gone)
    found: list[tuple[bool, int, int]] = []
    offset, seen = 1, []
    while offset < log.high_watermark:
        piece = log.read(offset, 4 << 20)
        assert piece is not None
        with piece:
            found.append((piece.body is not None, piece.first_offset, piece.next_offset))
            seen += [one for batch in iter_batches(piece.pread()) for one in batch.offsets()]
            offset = piece.next_offset
    assert seen == sorted(without(rows, *gone))
    assert found == [
        (False, 1, 81), (True, 81, 161), (False, 161, 1961), (True, 1961, 2001),
        (False, 2001, 3961), (True, 3961, 4001),
    ]  # fmt: skip


def test_the_number_of_ranges() -> None:
    chunk = 1 << 24
    assert ErasedSet({}).range_count == 0
    for ranges in (
        [(0, 1)],
        [(0, 3), (5, 6)],
        [(1, 2)],
        [(chunk - 2, chunk + 2)],
        [(chunk, 3 * chunk)],
    ):
        assert ErasedSet.of_ranges(ranges).range_count == len(ranges)
