"""Logs of compressed batches: rewritten, verified, cut and opened again like other logs."""

from __future__ import annotations

import pytest
from support.disks.logs import BASE_NS, DIRECTORY, flip, reopen
from support.disks.simfs import SimFileSystem
from support.packages import uninstalled
from support.worlds.rewriting import (
    Row,
    Rows,
    add,
    batches_of,
    check_entries,
    compact_fully,
    compact_once,
    keyed,
    rebatch_file,
    row,
    rows_of,
    stored,
)

from liftlog.errors import CorruptRange
from liftlog.log import Log
from liftlog.log.rewrite import ScrubJob, needs_rebatch, scrub
from liftlog.log.rewrite.rebatch import SMALL_BATCH_BYTES
from liftlog.records import iter_batches
from liftlog.records.format import CODEC_MASK
from liftlog.records.header import parse_header

NAMES = {"lz4": 1, "zstd": 2}


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def orders(count: int, size: int = 20) -> list[list[Row]]:
    return [
        [
            row(b"k%d" % (i * 7 % 40), b'{"state": "paid", "order": %d}' % (i + j), stamp=BASE_NS)
            for j in range(size)
        ]
        for i in range(count)
    ]


def codecs_in(log: Log) -> list[int]:
    return [batch.header.attributes & CODEC_MASK for batch in batches_of(log)]


def test_small_batches_are_put_together_and_compressed(name: str) -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    rows = add(log, orders(40), compression=name)
    rows |= add(log, orders(40))  # compression was switched on, or off, at some time
    log.writer.roll()
    assert set(codecs_in(log)) == {NAMES[name], 0}
    plain_log = keyed(SimFileSystem())
    add(plain_log, orders(80))
    result = rebatch_file(log, fs, 0, compression=name)
    assert result.batches_out < result.batches_in / 2
    assert stored(log) == rows
    assert set(codecs_in(log)) == {NAMES[name]}
    assert log.view.size_bytes < plain_log.view.size_bytes / 3
    check_entries(log, fs)
    # And back again, when compression was switched off since.
    log.writer.roll()
    rebatch_file(log, fs, 0, target=16384)
    assert stored(log) == rows
    check_entries(log, fs)


def test_what_was_put_together_is_not_read_again_for_being_small_on_disk(name: str) -> None:
    """Otherwise every start of the daemon would rewrite all compressed segments for nothing."""
    fs = SimFileSystem()
    log = keyed(fs)
    add(log, orders(1000), compression=name)
    log.writer.roll()
    assert needs_rebatch(fs, DIRECTORY, log.segments[0].entry())
    rebatch_file(log, fs, 0, compression=name, target=65536)
    log.writer.roll()
    entry = log.segments[0].entry()
    assert max(len(batch.stored) for batch in batches_of(log)) < SMALL_BATCH_BYTES
    assert not needs_rebatch(fs, DIRECTORY, entry)
    assert len(batches_of(log)) > 8
    flip(fs, log.segments[0].path, 40)
    assert not needs_rebatch(fs, DIRECTORY, entry), "a damaged header is passed over"


def test_a_batch_that_is_large_enough_before_compression_stays_as_it_is(name: str) -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    rows = add(log, orders(10, size=400), compression=name)
    log.writer.roll()
    before = [bytes(batch.stored) for batch in batches_of(log)]
    assert max(map(len, before)) < 8192 < min(len(batch.raw) for batch in batches_of(log))
    result = rebatch_file(log, fs, 0, target=16384)
    assert not result.swaps  # as many batches as there were: nothing was worth it
    assert [bytes(batch.stored) for batch in batches_of(log)] == before
    assert stored(log) == rows


def test_compaction_keeps_the_newest_of_each_key(name: str) -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    rows = add(log, orders(60), compression=name)
    log.writer.roll()
    newest = {row.key: offset for offset, row in rows.items()}
    compact_fully(log, fs, compression=name)
    assert stored(log) == {offset: rows[offset] for offset in sorted(newest.values())}
    assert set(codecs_in(log)) <= {NAMES[name], 0}
    assert NAMES[name] in codecs_in(log)
    check_entries(log, fs)
    assert compact_once(log, fs, compression=name) is None or stored(log)


def test_retention_by_number_needs_no_codec(name: str) -> None:
    """It is slightly less exact, but a missing package must not fill a disk."""
    fs = SimFileSystem()
    log = keyed(fs)
    add(log, orders(30), compression=name)
    log.writer.roll()
    compact_fully(log, fs, compression=name)
    segment = log.segments[0]
    exact = sorted(stored(log))[7]
    assert log.offset_of_record(segment, 7) == exact > segment.base_offset + 7
    log, _ = reopen(fs.kill())
    segment = log.segments[0]
    with uninstalled({"lz4": "lz4", "zstd": "zstandard"}[name]):
        assert segment.base_offset <= log.offset_of_record(segment, 7) <= exact


@pytest.mark.parametrize("inside", [3, 20, 62, 66, 70, 80])
def test_a_flipped_bit_costs_one_batch(name: str, inside: int) -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    rows = add(log, orders(12), compression=name)
    log.writer.roll()
    path = log.segments[0].path
    raw = fs.read(path)
    start = parse_header(raw).length
    flip(fs, path, start + inside)
    job = ScrubJob(str(DIRECTORY), log.segments[0].entry(), log.view.manifest.quarantined)
    (damage,) = scrub(job, fs).damaged
    assert (damage.first_offset, damage.next_offset) == (21, 41)
    log.structure.quarantine(log.segments[0].path.name, [damage])
    with pytest.raises(CorruptRange):
        log.read(21, 300)
    assert upto(log, 1, 21) | upto(log, 41, 241) == {o: rows[o] for o in rows if not 21 <= o < 41}


def upto(log: Log, offset: int, stop: int) -> Rows:
    found: Rows = {}
    while offset < stop and (piece := log.read(offset, 300)) is not None:
        with piece:
            for batch in iter_batches(piece.pread()):
                found |= rows_of(batch)
            offset = piece.next_offset
    return found


def test_a_tail_that_is_torn_anywhere_costs_itself(name: str) -> None:
    """Recovery examines only checksums, so it needs no codec."""
    fs = SimFileSystem()
    log = keyed(fs)
    rows = add(log, orders(3), compression=name)
    end = log.segments[-1].size_bytes
    path = log.segments[-1].path
    last = len(batches_of(log)[-1].stored)
    for cut in range(end - last + 1, end, 17):
        after = fs.kill()
        after.replace(path, after.read(path)[:cut])
        opened, _ = reopen(after)
        assert upto(opened, 1, 41) == {o: rows[o] for o in range(1, 41)}
        with pytest.raises(CorruptRange) as raised:
            opened.read(41, 300)
        assert (raised.value.first_offset, raised.value.next_offset) == (41, 61)
        opened.close()
