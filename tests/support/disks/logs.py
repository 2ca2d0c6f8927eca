"""One log on a file system of choice, with a memory of what was promised to whom."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from support.disks.simfs import SimFileSystem

from liftlog.errors import CorruptRange
from liftlog.log import (
    ActiveState,
    EncodedBatch,
    FileSystem,
    Log,
    LogConfig,
    LogEnvironment,
    RecoveryReport,
    open_log,
)
from liftlog.records import encode_batch, iter_batches

DIRECTORY = Path("/data/streams/orders")
BASE_NS = 1_700_000_000_000_000_000
SMALL = LogConfig(segment_max_bytes=1200, segment_max_age_ns=None)


class FakeClock:
    """Stands still unless told otherwise."""

    def __init__(self, now_ns: int = BASE_NS) -> None:
        self.now = now_ns

    def now_ns(self) -> int:
        return self.now

    def monotonic_ns(self) -> int:
        return self.now


def environment(
    fs: FileSystem, clock: FakeClock | None = None, *, files: int = 256, indexes: int = 64
) -> LogEnvironment:
    return LogEnvironment.create(
        fs, clock or FakeClock(), max_open_files=files, cached_indexes=indexes
    )


def encode(
    log: Log, values: list[bytes], *, stamp: int = BASE_NS, first: int | None = None
) -> EncodedBatch:
    base = log.log_end_offset if first is None else first
    data = encode_batch(
        base_offset=base,
        leader_epoch=log.leader_epoch,
        commit_group=log.writer.commit_group,
        stamps=[(stamp, len(values))],
        subjects=[b"orders.new"] * len(values),
        values=list(values),
    )
    return EncodedBatch(data, base, base + len(values), len(values), stamp, stamp)


class Promises:
    """What was ever written at an offset, and what was acked there."""

    def __init__(self) -> None:
        self.written: dict[int, set[bytes]] = {}
        self.acked: dict[int, bytes] = {}
        self.start = 1  # the highest log start that was asked for
        self.end = 1  # nothing below it may be assigned again, whether it is still there or not
        self.after_kill: dict[int, bytes] = {}  # must survive if only the process dies
        self.other: Promises | None = None  # what holds instead once the change under way is made
        self.serial = itertools.count()

    def copy(self) -> Promises:
        twin = Promises()
        twin.written = {offset: set(values) for offset, values in self.written.items()}
        twin.acked = dict(self.acked)
        twin.start, twin.end = self.start, self.end
        twin.after_kill = dict(self.after_kill)
        twin.serial = self.serial
        return twin

    def without(self, offset: int) -> Promises:
        """What is left of them when the log is cut at `offset`."""
        twin = self.copy()
        for rows in (twin.written, twin.acked, twin.after_kill):
            for gone in [one for one in rows if one >= offset]:
                del rows[gone]  # type: ignore[attr-defined]
        twin.end = min(twin.end, offset)
        twin.start = min(twin.start, offset)
        return twin

    def become(self, other: Promises) -> None:
        """The change was made: the other promises are the ones that hold."""
        self.__dict__.update(other.__dict__)
        self.other = None

    def value(self, offset: int, size: int = 40) -> bytes:
        """Never the same twice; many end in zeros."""
        serial = next(self.serial)
        tail = (b"\0" * 7, b".", b"", b"\0", b"\0" * 16)[serial % 5]
        raw = b"%d/%d/" % (offset, serial)
        value = raw + b"x" * max(size + serial % 11 - len(raw) - len(tail), 0) + tail
        self.written.setdefault(offset, set()).add(value)
        return value


def append(
    log: Log, promises: Promises, *sizes: int, stamp: int = BASE_NS
) -> list[tuple[int, bytes]]:
    """One group: a batch of `size` records for each size. Not synced."""
    batches = []
    rows = []
    offset = log.log_end_offset
    for size in sizes:
        values = [promises.value(offset + i) for i in range(size)]
        batches.append(encode(log, values, stamp=stamp, first=offset))
        rows += list(enumerate(values, offset))
        offset += size
    log.append(batches)
    return rows


def commit(log: Log, promises: Promises, *sizes: int, stamp: int = BASE_NS) -> None:
    """One group as the daemon does it: append, sync, high watermark, acks."""
    rows = append(log, promises, *sizes, stamp=stamp)
    log.commit_up_to(log.sync())
    promises.acked.update(rows)


DURABILITIES = ["fsync", "interval", "os"]


class Writer:
    """Publishes as the daemon does in one durability mode, and makes the promises of that mode.

    `fsync`: an ack promises the record. Below that it promises the record only as long as the
    machine runs, but in any case that no other record gets its offset.
    """

    def __init__(self, log: Log, promises: Promises, durability: str) -> None:
        self.log = log
        self.promises = promises
        self.durability = durability
        self.waiting: dict[int, bytes] = {}  # appended, not synced

    def commit(self, *sizes: int, stamp: int = BASE_NS) -> None:
        self._committing(lambda: append(self.log, self.promises, *sizes, stamp=stamp))

    def store(self, rows: dict[int, bytes], call: Callable[[], None]) -> None:
        """Commit what `call` appends."""
        self._committing(lambda: call() or rows.items())  # type: ignore[func-returns-value]

    def _committing(self, call: Callable[[], Iterable[tuple[int, bytes]]]) -> None:
        log, promises = self.log, self.promises
        if self.durability != "fsync":
            log.writer.admit_early_acks()
        rows = list(call())
        self.waiting.update(rows)
        if self.durability == "fsync":
            log.sync()
        if self.durability == "interval":
            log.writer.note_acked(log.log_end_offset)
        else:
            log.commit_up_to(log.log_end_offset)
        promises.end = log.log_end_offset
        promises.after_kill.update(rows)
        self.settle()

    def flush(self) -> None:
        self.log.sync()
        self.log.commit_up_to(self.log.log_end_offset)
        self.settle()

    def settle(self) -> None:
        durable = self.log.durable_end_offset
        for offset in [offset for offset in self.waiting if offset < durable]:
            self.promises.acked[offset] = self.waiting.pop(offset)


def read_all(log: Log, *, max_bytes: int = 500) -> dict[int, bytes]:
    """Every readable record by offset, read in small steps; checks what an answer promises."""
    found: dict[int, bytes] = {}
    offset = log.log_start_offset
    while True:
        try:
            piece = log.read(offset, max_bytes)
        except CorruptRange as damage:
            if not offset <= damage.first_offset < damage.next_offset:
                raise AssertionError(f"a senseless range at {offset}") from damage
            offset = damage.next_offset
            continue
        if piece is None:
            return found
        with piece:
            raw = piece.pread()
            assert len(raw) == piece.length
            reached = piece.first_offset
            count = 0
            for batch in iter_batches(raw):
                assert batch.header.base_offset == reached
                reached = batch.next_offset
                count += len(batch)
                for record in batch.trim(offset):
                    assert record.offset not in found
                    assert record.value is not None
                    found[record.offset] = record.value
            assert reached == piece.next_offset
            assert count <= piece.record_count
            assert offset < piece.next_offset <= log.high_watermark
            offset = piece.next_offset


class Facts(NamedTuple):
    """What a log holds, as far as promises go."""

    found: dict[int, bytes]
    start: int
    end: int
    gone: tuple[tuple[int, int], ...]
    lost_ends: tuple[tuple[int, int], ...]
    """Those of `gone` that are told as a loss though no byte is damaged: the end was missed."""
    told: tuple[tuple[int, int], ...]
    """Those of `gone` that readers are told of."""

    @classmethod
    def of(cls, log: Log) -> Facts:
        assert log.high_watermark == log.log_end_offset
        ranges = sorted(log.view.manifest.quarantined, key=lambda bad: bad.first_offset)
        gone = tuple((bad.first_offset, bad.next_offset) for bad in ranges)
        lost_ends = tuple(
            (bad.first_offset, bad.next_offset)
            for bad in ranges
            if bad.is_loss and bad.position == bad.end_position
        )
        told = tuple((bad.first_offset, bad.next_offset) for bad in ranges if bad.is_loss)
        return cls(read_all(log), log.log_start_offset, log.log_end_offset, gone, lost_ends, told)

    def key(self) -> tuple[object, ...]:
        return (tuple(sorted(self.found.items())), *self[1:])

    def check(self, promises: Promises, *, lost: range = range(0), killed: bool = False) -> None:
        """See `check`."""
        if promises.other is not None:
            try:
                self.check(promises.other, lost=lost, killed=killed)
            except AssertionError:
                pass  # then the change did not happen, and all is as before
            else:
                return
        assert self.start <= max(promises.start, 1)
        promised = promises.acked | promises.after_kill if killed else promises.acked
        for offset, value in promised.items():
            if offset >= self.start and offset not in lost:
                assert self.found.get(offset) == value, f"acked offset {offset} is gone"
        for offset, value in promises.after_kill.items():  # a power cut may take these
            if offset >= self.start and self.found.get(offset) != value:
                told = any(first <= offset < following for first, following in self.told)
                assert told, f"offset {offset} was acked and is gone, and was not reported"
        for offset, value in self.found.items():
            written = promises.written.get(offset, ())
            assert value in written, f"offset {offset} holds what was never written"
            assert offset not in lost
        assert self.end >= promises.end, "an offset acked before its sync would be assigned again"
        if promised:
            assert self.end > max(promised), "an acked offset would be assigned again"
        reached = self.start
        for first, following in sorted([*self.gone, *((one, one + 1) for one in self.found)]):
            assert first <= reached, f"unexplained gap at {reached}"
            reached = max(reached, following)
        assert reached >= self.end, f"unexplained gap at {reached}"


def check(
    log: Log, promises: Promises, *, lost: range = range(0), killed: bool = False
) -> dict[int, bytes]:
    """What must hold after every recovery; `lost` are acked offsets that were damaged.

    With `killed` the machine went on, so what was acked before its sync must be there too.
    """
    facts = Facts.of(log)
    facts.check(promises, lost=lost, killed=killed)
    return facts.found


def reopen(
    fs: FileSystem,
    *,
    boot: str = "boot-1",
    clean: ActiveState | None = None,
    recovery_point: ActiveState | None = None,
    config: LogConfig = SMALL,
    directory: Path = DIRECTORY,
) -> tuple[Log, RecoveryReport]:
    return open_log(
        directory,
        environment(fs),
        config,
        clean=clean,
        recovery_point=recovery_point,
        boot_id=boot,
    )


def create(
    fs: FileSystem,
    *,
    config: LogConfig = SMALL,
    boot: str = "boot-1",
    directory: Path = DIRECTORY,
    incarnation: str | None = None,
) -> Log:
    """A new log in a directory that is there already, as the data directory's `streams` is."""
    fs.make_directory(directory.parent)
    for parent in [*directory.parents]:
        fs.fsync_directory(parent)
    return Log.create(directory, environment(fs), config, incarnation=incarnation, boot_id=boot)


def set_manifest(log: Log, **changes: object) -> None:
    """Change the manifest in memory alone, as if it had been like this from the beginning."""
    set_view(log, manifest=log.view.manifest.with_changes(**changes))


def set_view(log: Log, **changes: object) -> None:
    """Change the state in memory alone that readers see."""
    log._state.view = log.view._replace(**changes)  # type: ignore[arg-type]


def flip(fs: SimFileSystem, path: Path, position: int, bit: int = 0) -> None:
    raw = bytearray(fs.read(path))
    raw[position] ^= 1 << bit
    fs.replace(path, bytes(raw))
