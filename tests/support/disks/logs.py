"""One log on any file system, with the promises that were made to publishers."""

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
    """A clock that only a test advances."""

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
    """All records that were ever written, by offset, and the acked ones."""

    def __init__(self) -> None:
        self.written: dict[int, set[bytes]] = {}
        self.acked: dict[int, bytes] = {}
        self.start = 1  # the highest requested log start
        self.end = 1  # no offset below it may be assigned again
        self.after_kill: dict[int, bytes] = {}  # must survive a kill of the process
        self.other: Promises | None = None  # valid instead, after the running change
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
        """Return the promises that remain after a truncation of the log at `offset`."""
        twin = self.copy()
        for rows in (twin.written, twin.acked, twin.after_kill):
            for gone in [one for one in rows if one >= offset]:
                del rows[gone]  # type: ignore[attr-defined]
        twin.end = min(twin.end, offset)
        twin.start = min(twin.start, offset)
        return twin

    def become(self, other: Promises) -> None:
        """Replace these promises by the other ones, because the change was made."""
        self.__dict__.update(other.__dict__)
        self.other = None

    def value(self, offset: int, size: int = 40) -> bytes:
        """Return a unique value. Many values end in zeros."""
        serial = next(self.serial)
        tail = (b"\0" * 7, b".", b"", b"\0", b"\0" * 16)[serial % 5]
        raw = b"%d/%d/" % (offset, serial)
        value = raw + b"x" * max(size + serial % 11 - len(raw) - len(tail), 0) + tail
        self.written.setdefault(offset, set()).add(value)
        return value


def append(
    log: Log, promises: Promises, *sizes: int, stamp: int = BASE_NS
) -> list[tuple[int, bytes]]:
    """Append one group with one batch for each number in `sizes`, of this number of records. Does
    not sync."""
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
    """Commit one group like the daemon: append, sync, high watermark, acks."""
    rows = append(log, promises, *sizes, stamp=stamp)
    log.commit_up_to(log.sync())
    promises.acked.update(rows)


DURABILITIES = ["fsync", "interval", "os"]


class Writer:
    """Publishes like the daemon in one durability mode, and makes the promises of this mode.

    With `fsync` an ack promises the record. With a lower durability it promises the record only as
    long as the machine runs. In each mode it promises that no other record gets its offset.
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
    """Return every readable record by offset, read in small steps. Checks the promises of each
    answer."""
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
    """The content of a log, as far as promises depend on it."""

    found: dict[int, bytes]
    start: int
    end: int
    gone: tuple[tuple[int, int], ...]
    lost_ends: tuple[tuple[int, int], ...]
    """The offsets in `gone` that are reported as a loss although no byte is damaged, because the
    end of the log was missing."""
    told: tuple[tuple[int, int], ...]
    """The offsets in `gone` that readers get an error for."""

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
                pass  # the change was not made, so nothing has changed
            else:
                return
        assert self.start <= max(promises.start, 1)
        promised = promises.acked | promises.after_kill if killed else promises.acked
        for offset, value in promised.items():
            if offset >= self.start and offset not in lost:
                assert self.found.get(offset) == value, f"acked offset {offset} is gone"
        for offset, value in promises.after_kill.items():  # a power cut may remove these
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
    """Check the rules that hold after every recovery. `lost` are acked offsets that were damaged.

    With `killed` the machine did not stop, so records that were acked before their sync must exist,
    too.
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
    """Create a log in an existing directory, like the `streams` of a data directory."""
    fs.make_directory(directory.parent)
    for parent in [*directory.parents]:
        fs.fsync_directory(parent)
    return Log.create(directory, environment(fs), config, incarnation=incarnation, boot_id=boot)


def set_manifest(log: Log, **changes: object) -> None:
    """Change the manifest only in memory, as if it had always been like this."""
    set_view(log, manifest=log.view.manifest.with_changes(**changes))


def set_view(log: Log, **changes: object) -> None:
    """Change the state that readers get, only in memory."""
    log._state.view = log.view._replace(**changes)  # type: ignore[arg-type]


def flip(fs: SimFileSystem, path: Path, position: int, bit: int = 0) -> None:
    raw = bytearray(fs.read(path))
    raw[position] ^= 1 << bit
    fs.replace(path, bytes(raw))
