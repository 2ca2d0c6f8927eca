"""Every byte of a segment, of its index and of the files beside it: flipped, zeroed, cut, doubled.

Whatever the value of a byte, no wrong record is delivered, each reader gets the lost offsets, and
no acked offset is assigned again. If a byte only changed its value, only the batch with this byte
is lost.

`make test` damages a sample of the bytes, `make torture` every one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from support.disks.logs import BASE_NS, DIRECTORY, FakeClock, create, environment
from support.disks.simfs import SimFileSystem
from support.rounds import one_in

from liftlog.errors import CorruptBatch, CorruptMetadata, CorruptRange, UnsupportedFormat
from liftlog.log import ActiveState, EncodedBatch, Log, LogConfig, open_log
from liftlog.log.files.acked_end import ACKED_END_NAME
from liftlog.log.segment.index import index_path
from liftlog.records import decode_batch, encode_batch, parse_header

CONFIG = LogConfig(segment_max_bytes=1 << 20, segment_max_age_ns=None)

DAMAGE: dict[str, Callable[[bytes, int], bytes]] = {
    "flipped": lambda raw, i: raw[:i] + bytes([raw[i] ^ 0x11]) + raw[i + 1 :],
    "zeroed": lambda raw, i: raw[:i] + b"\0" + raw[i + 1 :],
    "cut": lambda raw, i: raw[:i],
    "doubled": lambda raw, i: raw[: i + 1] + raw[i:],
}


class Stored(NamedTuple):
    fs: SimFileSystem
    values: dict[int, bytes | None]
    sealed: Path
    active: Path
    end: int
    clean: ActiveState


def append(log: Log, count: int, *, full: bool) -> dict[int, bytes | None]:
    """Append one batch as one group. A full batch has every optional column."""
    base = log.log_end_offset
    offsets = [base + 2 * i for i in range(count)] if full else list(range(base, base + count))
    values: list[bytes | None] = [b"value %d" % offset for offset in offsets]
    optional = {}
    if full:
        values[-1] = None
        optional = {
            "keys": [None, *(b"key %d" % offset for offset in offsets[1:])],
            "headers": [b"", *(b"NATS/1.0\r\nA: %d\r\n\r\n" % o for o in offsets[1:])],
            "has_tombstones": True,
            "offsets": offsets,
            "last_offset": offsets[-1],
        }
    data = encode_batch(
        base_offset=base,
        leader_epoch=log.leader_epoch,
        commit_group=log.writer.commit_group,
        stamps=[(BASE_NS, 1), (BASE_NS + 5_000_000, count - 1)] if full else [(BASE_NS, count)],
        subjects=[b"a.%d" % (i % 2) for i in range(count)] if full else [b"a"] * count,
        values=values,
        **optional,  # type: ignore[arg-type]
    )
    end = parse_header(data).next_offset
    log.append([EncodedBatch(data, base, end, count, BASE_NS, BASE_NS + 5_000_000)])
    log.commit_up_to(log.sync())
    return dict(zip(offsets, values, strict=True))


@pytest.fixture(scope="module")
def stored() -> Stored:
    """A sealed and an active segment of three small batches each. The middle batch has all columns;
    everything is synced and acked."""
    fs = SimFileSystem()
    log = create(fs, config=CONFIG)
    values: dict[int, bytes | None] = {}
    for segment in range(2):
        for batch in range(3):
            if segment == 1 and batch == 0:
                log.writer.roll()
            values |= append(log, 3, full=batch == 1)
    sealed, active = (one.path for one in log.segments)
    end = log.log_end_offset
    state = log.close()
    assert state is not None
    return Stored(fs.power_cut("all"), values, sealed, active, end, state)


def damaged_disks(
    stored: Stored, path: Path, damage: str, stop: str = ""
) -> Iterator[tuple[int, SimFileSystem]]:
    raw = stored.fs.read(path)
    # Not one in four: of each four the log goes on once.
    for position in one_in(5, range(len(raw)), f"{path.name} {damage} {stop}"):
        bad = DAMAGE[damage](raw, position)
        if bad != raw:
            disk = stored.fs.power_cut("all")
            disk.replace(path, bad)
            yield position, disk


def read_carefully(log: Log) -> tuple[dict[int, bytes | None], list[range]]:
    """Read batch by batch, with the checks of a client. Returns the delivered records and the
    reported ranges."""
    found: dict[int, bytes | None] = {}
    reported: list[range] = [
        range(one.first_offset, one.next_offset) for one in log.view.manifest.quarantined
    ]
    offset = log.log_start_offset
    while True:
        try:
            piece = log.read(offset, 1)
        except CorruptRange as damage:
            reported.append(range(damage.first_offset, damage.next_offset))
            if not offset <= damage.first_offset < damage.next_offset:
                raise AssertionError(f"a senseless range at {offset}") from damage
            offset = damage.next_offset
            continue
        if piece is None:
            return found, reported
        with piece:
            raw = piece.pread()
            try:
                batch = decode_batch(raw)
            except CorruptBatch:
                reported.append(range(max(piece.first_offset, offset), piece.next_offset))
            else:
                for record in batch.trim(offset).records():
                    assert record.offset not in found
                    found[record.offset] = record.value
            assert piece.next_offset > offset
            offset = piece.next_offset


def check(
    stored: Stored, disk: SimFileSystem, log: Log, what: str, *, go_on: bool = True
) -> list[int]:
    """Check the log. Returns the offsets whose records are lost."""
    found, reported = read_carefully(log)
    for offset, value in found.items():
        assert stored.values.get(offset, b"was never written") == value, (what, offset, value)
    gone = [offset for offset in stored.values if offset not in found]
    for offset in gone:
        assert any(offset in one for one in reported), (
            f"{what}: {offset} vanished silently; reported were {reported}"
        )
    assert log.log_end_offset >= stored.end, f"{what}: an acked offset would be used again"
    if go_on:  # also over the next start
        added = append(log, 2, full=False)
        assert min(added) >= stored.end
        again = reopen(disk.power_cut("all"), None)
        later, _ = read_carefully(again)
        assert later == found | added, what
    return gone


def assert_small(stored: Stored, path: Path, position: int, damage: str, gone: list[int]) -> None:
    """Check that only the damaged batch is lost. If bytes are missing or added, the batches after
    it may be lost, too."""
    raw, start, header = stored.fs.read(path), 0, parse_header(stored.fs.read(path))
    while start + header.length <= position:
        start += header.length
        header = parse_header(raw, start)
    batch = range(header.base_offset, header.next_offset)
    if damage in ("flipped", "zeroed"):
        assert gone == [offset for offset in stored.values if offset in batch]
    elif damage == "cut":
        end = 12 if path == stored.sealed else stored.end
        assert gone == [offset for offset in stored.values if batch.start <= offset < end]
    else:  # a byte that is doubled at the end of a batch only shifts what is behind it
        assert all(offset >= batch.start for offset in gone)


def reopen(disk: SimFileSystem, clean: ActiveState | None, boot: str = "boot-1") -> Log:
    storage = environment(disk, FakeClock())
    return open_log(DIRECTORY, storage, CONFIG, clean=clean, boot_id=boot)[0]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("stop", ["clean", "killed"])
def test_a_sealed_segment(stored: Stored, stop: str, damage: str) -> None:
    for position, disk in damaged_disks(stored, stored.sealed, damage, stop):
        log = reopen(disk, stored.clean if stop == "clean" else None)
        gone = check(stored, disk, log, f"{damage} at {position}", go_on=position % 4 == 0)
        assert_small(stored, stored.sealed, position, damage, gone)


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("stop", ["clean", "killed", "power cut"])
def test_the_active_segment(stored: Stored, stop: str, damage: str) -> None:
    for position, disk in damaged_disks(stored, stored.active, damage, stop):
        clean = stored.clean if stop == "clean" else None
        log = reopen(disk, clean, "boot-2" if stop == "power cut" else "boot-1")
        gone = check(stored, disk, log, f"{damage} at {position}", go_on=position % 4 == 0)
        assert_small(stored, stored.active, position, damage, gone)


@pytest.mark.parametrize("damage", DAMAGE)
def test_an_index(stored: Stored, damage: str) -> None:
    """No record is lost, because an index is only an optimization and is rebuilt."""
    for position, disk in damaged_disks(stored, index_path(stored.sealed), damage):
        log = reopen(disk, stored.clean)
        assert check(stored, disk, log, f"{damage} at {position}") == []
        assert log.offset_for_timestamp(BASE_NS + 1) == 6, "the second of the full batch"


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_slot(stored: Stored, damage: str) -> None:
    for position, disk in damaged_disks(stored, DIRECTORY / ACKED_END_NAME, damage):
        log = reopen(disk, None)
        assert check(stored, disk, log, f"{damage} at {position}") == []


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_manifest(stored: Stored, damage: str) -> None:
    """Damage of one of its two copies has no effect. If both are damaged, the stream is refused as
    a whole, and no file is changed, because its content is never guessed."""
    for name in ("manifest", "manifest.copy"):
        for position, disk in damaged_disks(stored, DIRECTORY / name, damage):
            log = reopen(disk, stored.clean)
            assert check(stored, disk, log, f"{damage} at {position} of {name}") == []
    refused = looked = 0
    for position, disk in damaged_disks(stored, DIRECTORY / "manifest", damage):
        looked += 1
        disk.replace(DIRECTORY / "manifest.copy", disk.read(DIRECTORY / "manifest"))
        before = {name: disk.read(DIRECTORY / name) for name in disk.list_directory(DIRECTORY)}
        try:
            log = reopen(disk, stored.clean)
        except (CorruptMetadata, UnsupportedFormat):
            refused += 1
            after = {name: disk.read(DIRECTORY / name) for name in disk.list_directory(DIRECTORY)}
            assert after == before, f"{damage} at {position}"
        else:  # one blank more between two words of its first line says the same
            assert damage == "doubled"
            assert check(stored, disk, log, f"{damage} at {position}") == []
    assert refused > 0.9 * looked


def test_undamaged(stored: Stored) -> None:
    """Check the test itself: without damage no record is lost."""
    disk = stored.fs.power_cut("all")
    assert check(stored, disk, reopen(disk, stored.clean), "nothing") == []
    assert len(stored.values) == 18
