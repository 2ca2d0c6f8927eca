"""Sketches: no wanted record is in a block that they exclude, and outdated or damaged ones do not
count."""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from itertools import pairwise

import pytest
from crc32c import crc32c
from support.disks.logs import BASE_NS, DIRECTORY, Promises, append, flip, reopen
from support.disks.simfs import Fault, Keep, MachineStopped, SimFileSystem
from support.rounds import seeds
from support.worlds.rewriting import Row, Rows, add, keyed, rebatch_file, row, sketch_segments

from liftlog.errors import SyncFailed
from liftlog.log import Log
from liftlog.log.rewrite import make_sketch
from liftlog.log.segment.derived import sketch_path
from liftlog.log.segment.parts import NO_CHECKS
from liftlog.log.segment.sketch import (
    Probe,
    is_sketched,
    read_sketch,
    read_value_checks,
    write_sketch,
)
from liftlog.records import iter_batches
from liftlog.records.format import CODEC_MASK, padded
from liftlog.server.cleaning.next_segments import Unsketched

KEEPS: list[Keep] = ["none", "some", "all", "last"]


def random_rows(rng: random.Random, count: int, stamp: int) -> list[Row]:
    return [
        row(
            rng.choice([None, b"", b"k%d" % rng.randrange(3000)]),
            rng.choice([b"", b"x" * rng.randrange(400), rng.randbytes(100)]),
            subject=f"orders.{rng.randrange(500)}.größe",
            stamp=stamp + 1000 * rng.randrange(1000),
        )
        for _ in range(count)
    ]


def sealed(fs: SimFileSystem, rng: random.Random) -> tuple[Log, Rows]:
    log = keyed(fs)
    found: Rows = {}
    for number in range(rng.randrange(1, 40)):
        rows = random_rows(rng, rng.choice([1, 3, 40, 300]), BASE_NS + number * 10_000_000)
        found.update(add(log, [rows], compression=rng.choice(["none", "zstd"])))
    found.update(add(log, [[row(None, b"x" * 200, stamp=BASE_NS + 10**9)] * 30]))
    log.writer.roll()
    return log, found


def matches(probe: Probe, one: Row) -> bool:
    return (
        probe.not_before_ns <= one.timestamp_ns <= probe.not_after_ns
        and probe.subject in (None, one.subject.encode())
        and probe.key in (None, one.key)
    )


def probes(rng: random.Random, rows: Rows) -> list[Probe]:
    some = [rng.choice(list(rows.values())) for _ in range(12)]
    return [
        *(Probe(key=one.key) for one in some if one.key is not None),
        *(Probe(subject=one.subject.encode()) for one in some),
        *(Probe(one.timestamp_ns, one.timestamp_ns) for one in some),
        *(Probe(not_before_ns=one.timestamp_ns, subject=one.subject.encode()) for one in some),
        Probe(key=b"none has it"),
        Probe(subject=b"none.has.it"),
        Probe(not_after_ns=0),
    ]


@pytest.mark.parametrize("seed", seeds(6))
def test_no_wanted_record_is_excluded(seed: int) -> None:
    rng, fs = random.Random(seed), SimFileSystem()
    log, rows = sealed(fs, rng)
    assert all(made.size_bytes for made in sketch_segments(log, fs))
    first, end = log.log_start_offset, log.high_watermark
    for probe in probes(rng, rows):
        extents = log.extents(first, 1, probe)
        assert (extents[0].first_offset, extents[-1].next_offset) == (first, end)
        kept = [range(one.first_offset, one.next_offset) for one in extents if one.size_bytes]
        wanted = {offset for offset, one in rows.items() if matches(probe, one)}
        assert all(any(offset in span for span in kept) for offset in wanted)


def test_most_of_what_is_not_wanted_is_excluded() -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    for number in range(40):
        keys = range(number * 300, number * 300 + 300)
        stamp = BASE_NS + number * 1_000_000
        add(log, [[row(b"k%d" % key, b"x" * 200, stamp=stamp) for key in keys]])
    log.writer.roll()
    made = sketch_segments(log, fs)
    assert len(made) > 2
    assert sum(one.size_bytes for one in made) < log.view.size_bytes / 30
    blocks = 20
    for probe, most in (
        (Probe(key=b"k1234"), 3),
        (Probe(key=b"none"), 3),
        (Probe(BASE_NS + 7_000_000, BASE_NS + 7_000_000), 1),
        (Probe(subject=b"orders.new"), blocks),
        (Probe(subject=b"wages"), 3),
    ):
        offsets = sum(
            one.next_offset - one.first_offset for one in log.extents(1, 1, probe) if one.size_bytes
        )
        assert offsets <= 600 * most, probe  # a block is two batches
    halfway = log.extents(9000, 1, Probe(key=b"k1234"))
    assert halfway[0].first_offset <= 9000 < halfway[0].next_offset
    assert [one.size_bytes for one in halfway] == [0]


@pytest.mark.parametrize("seed", seeds(4))
def test_neighbours_of_one_kind_are_joined_up_to_the_step(seed: int) -> None:
    """The pieces are made of blocks of one kind each, and no two of them would fit into one."""
    rng, fs = random.Random(seed), SimFileSystem()
    log = keyed(fs)
    for number in range(60):
        subject = rng.choice(["orders.eu", "orders.us"])
        add(log, [[row(b"k%d" % number, b"x" * 30_000, subject=subject)] * rng.randrange(1, 12)])
    log.writer.roll()
    sketch_segments(log, fs)
    first = log.log_start_offset
    for probe in (Probe(subject=b"orders.eu"), Probe(key=b"k7"), Probe(key=b"none"), Probe()):
        sizes, some = {}, {}
        for segment in log.segments:
            sketch = read_sketch(fs, segment.path, segment.entry(), log.view.manifest.lineage)
            if sketch is not None:
                blocks = sketch.blocks(probe)
                begins = blocks.borders[:-1].tolist()
                sizes.update(zip(begins, blocks.sizes_bytes.tolist(), strict=True))
                some.update(zip(begins, blocks.may_match.tolist(), strict=True))
        assert len(sizes) > 40
        for step in (64 * 1024, 300_000, 10**9):
            extents = log.extents(first, step, probe)
            assert (extents[0].first_offset, extents[-1].next_offset) == (first, log.high_watermark)
            for one in extents:
                inside = [at for at in sizes if one.first_offset <= at < one.next_offset]
                assert inside[0] == one.first_offset
                assert {some[at] for at in inside} == {one.size_bytes > 0}
                if one.size_bytes:
                    assert one.size_bytes == sum(sizes[at] for at in inside)
                assert one.size_bytes <= step or len(inside) == 1
            for one, following in pairwise(extents):
                assert one.next_offset == following.first_offset
                alike = bool(one.size_bytes) == bool(following.size_bytes)
                # What is joined next begins with a block, not with all of the next piece.
                assert not alike or one.size_bytes + sizes[following.first_offset] > step


def test_stale_and_damaged_ones_do_not_count() -> None:
    rng, fs = random.Random(3), SimFileSystem()
    log, _ = sealed(fs, rng)
    segment = log.segments[0]
    entry, path = segment.entry(), segment.path
    assert not is_sketched(fs, path, entry, log.view.manifest.lineage)
    sketch_segments(log, fs)
    assert is_sketched(fs, path, entry, log.view.manifest.lineage)
    assert read_sketch(fs, path, entry, "another:1") is None
    assert not is_sketched(fs, path, entry, "another:1")
    shorter = replace(entry, size_bytes=entry.size_bytes - 8)
    longer = replace(entry, next_offset=entry.next_offset + 1)
    for other in (shorter, longer):
        assert read_sketch(fs, path, other, log.view.manifest.lineage) is None
    whole, good = (
        fs.read(sketch_path(path)),
        read_sketch(fs, path, entry, log.view.manifest.lineage),
    )
    assert good is not None
    checks = good.value_checks.position
    assert checks < len(whole)
    for position in [*range(48), *rng.sample(range(48, checks), 40)]:
        flip(fs, sketch_path(path), position)
        assert read_sketch(fs, path, entry, log.view.manifest.lineage) is None, position
        flip(fs, sketch_path(path), position)
    assert read_value_checks(fs, path, good.value_checks) is not None
    for position in rng.sample(range(checks, len(whole)), 10):
        # Whoever needs no value checks does not read them.
        flip(fs, sketch_path(path), position)
        assert read_sketch(fs, path, entry, log.view.manifest.lineage) is not None
        assert read_value_checks(fs, path, good.value_checks) is None
        flip(fs, sketch_path(path), position)
    for length in (len(whole) - 1, len(whole) - 4, checks):
        file = fs.open(sketch_path(path))
        file.truncate(length)
        file.close()
        assert read_value_checks(fs, path, good.value_checks) is None, length
    for length in (0, 3, 39, 40, 47, 48, 60, checks - 1):
        file = fs.open(sketch_path(path))
        file.truncate(length)
        file.close()
        assert read_sketch(fs, path, entry, log.view.manifest.lineage) is None, length
    assert all(one.size_bytes for one in log.extents(1, 1, Probe(key=b"none")))


def test_each_head_and_value_has_its_checksum() -> None:
    rng, fs = random.Random(3), SimFileSystem()
    log = keyed(fs)
    for number in range(60):
        stamp = BASE_NS + number * 10_000_000
        size = rng.choice([0, 20, 64, 300])
        rows = [
            row(key, b"x" * rng.randrange(2 * size + 1), headers=b"", stamp=stamp)
            for key in [None, b"", b"k"] * rng.choice([1, 100])
        ]
        rows += [row(b"gone", None, headers=b"", stamp=stamp)] * rng.randrange(2)
        add(log, [rows], compression=rng.choice(["none", "none", "zstd"]))
    log.writer.roll()
    sketch_segments(log, fs)
    path, entry = log.segments[0].path, log.segments[0].entry()
    sketch = read_sketch(fs, path, entry, log.view.manifest.lineage)
    assert sketch is not None
    checks = read_value_checks(fs, path, sketch.value_checks)
    assert checks is not None
    raw, position, seen, kinds = fs.read(path), 0, 0, set()
    batches = list(iter_batches(raw[: entry.size_bytes]))
    for batch, part in zip(batches, sketch.parts.tolist(), strict=True):
        assert part[0] == position
        values = [value or b"" for value in batch.values()]
        size = sum(map(len, values))
        if batch.header.attributes & CODEC_MASK or size < 4096:
            assert part[1:] == (0, 0, NO_CHECKS)
        else:
            head = raw[position : position + part[1]]
            assert raw[position + part[1] :].startswith(b"".join(values))
            assert batch.header.length - len(head) == padded(size)
            assert part[2] == crc32c(head[64:])
            assert part[3] == (seen if size >= 64 * len(values) else NO_CHECKS)
            if part[3] != NO_CHECKS:
                stop = seen + len(values)
                assert checks[seen:stop].tolist() == [crc32c(value) for value in values]
                seen = stop
        kinds.add((part[1] > 0, part[3] != NO_CHECKS))
        position += batch.header.length
    assert seen == len(checks)
    assert kinds == {(False, False), (True, False), (True, True)}


def test_one_of_version_1_is_made_again() -> None:
    """A sketch as the last release wrote it. Common fields have the same places."""
    fs = SimFileSystem()
    log, _ = sealed(fs, random.Random(4))
    sketch_segments(log, fs)
    path, entry = log.segments[0].path, log.segments[0].entry()
    made = fs.read(sketch_path(path))
    blocks = struct.unpack_from("<I", made, 8)[0]
    parts, sketch = 48 + 32 * blocks, read_sketch(fs, path, entry, log.view.manifest.lineage)
    assert sketch is not None
    filters = made[parts + 16 * len(sketch.parts) : sketch.value_checks.position]
    head = made[:4] + struct.pack("<I", 1) + made[8:36]
    check = struct.pack("<I", crc32c(made[48:parts], crc32c(head)))
    write_sketch(fs, path, head + check + made[48:parts] + filters)
    assert not is_sketched(fs, path, entry, log.view.manifest.lineage)
    assert read_sketch(fs, path, entry, log.view.manifest.lineage) is None
    job = Unsketched().find(log, log.segments[:-1])
    assert job is not None
    make_sketch(job, fs)
    assert fs.read(sketch_path(path)) == made


def test_a_crash_leaves_none_or_one_that_excludes_no_wanted_record() -> None:
    """The machine stops at each step of the creation. The sketch is not fsynced."""
    rng, fs = random.Random(7), SimFileSystem()
    log, rows = sealed(fs, rng)
    log.close()
    survived, stop_at = set(), 0
    while True:
        stop_at += 1
        is_over = False
        for keep in KEEPS:
            image = fs.power_cut("all")
            one, _ = reopen(image)
            image.stop_at = image.operations + stop_at - 1
            try:
                sketch_segments(one, image)
                is_over = True
            except MachineStopped:
                pass
            after = image.power_cut(keep, stop_at)
            again, _ = reopen(after)
            segment = again.segments[0]
            survived.add(
                read_sketch(after, segment.path, segment.entry(), again.view.manifest.lineage)
                is not None
            )
            for probe in probes(rng, rows):
                found = again.extents(1, 1, probe)
                for offset, record in rows.items():
                    if matches(probe, record):
                        assert any(
                            one.size_bytes and one.first_offset <= offset < one.next_offset
                            for one in found
                        )
        if is_over:
            break
    assert stop_at > 2
    assert survived == {True, False}


def test_a_damaged_segment_has_none() -> None:
    rng, fs = random.Random(2), SimFileSystem()
    log, _ = sealed(fs, rng)
    flip(fs, log.segments[0].path, 100)
    assert [made.size_bytes for made in sketch_segments(log, fs)] == [0]
    assert not fs.exists(sketch_path(log.segments[0].path))


def test_what_was_lost_behind_a_segment_is_not_excluded() -> None:
    """A read that must not miss records has to reach the loss."""
    fs = SimFileSystem()
    log = keyed(fs)
    add(log, [[row(b"k1", b"1")]])
    lost = log.log_end_offset
    append(log, Promises(), 3)
    fs.faults = [Fault("fsync", path=".log")]
    with pytest.raises(SyncFailed):
        log.sync()
    log.writer.abandon_tail(keep_offsets=True)
    add(log, [[row(b"k2", b"2")]])
    log.writer.roll()
    assert all(made.size_bytes for made in sketch_segments(log, fs))
    read = [one for one in log.extents(1, 1, Probe(key=b"none")) if one.size_bytes]
    assert [(one.first_offset, one.next_offset) for one in read] == [(lost, lost + 3)]


def test_it_goes_with_its_segment() -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    for number in range(3):
        for i in range(40):
            add(log, [[row(b"k%d" % i, b"%d" % number)]])
        log.writer.roll()
    sketch_segments(log, fs)
    old = [sketch_path(segment.path) for segment in log.segments[:-1]]
    rebatch_file(log, fs, 0)
    log.structure.remove_before(log.segments[2].base_offset, 2)
    assert [fs.exists(path) for path in old] == [False, False, True]
    log.close()
    # What a crash leaves is removed by the next start; what belongs there stays.
    stray = sketch_path(DIRECTORY / f"{1:020d}.log")
    fs.open(stray, create=True).close()
    reopen(fs)
    assert not fs.exists(stray)
    assert fs.exists(old[2])
