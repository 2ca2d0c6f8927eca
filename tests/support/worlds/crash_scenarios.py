"""Operations of a daemon on one log, in a form that can be stopped before each step.

Each scenario is a function of (world, durability). It updates `world.promises` step by step: the
acked records and, during a truncation, the promises that are valid after the truncation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

from support.disks.logs import (
    BASE_NS,
    DIRECTORY,
    SMALL,
    Promises,
    Writer,
    append,
    commit,
    create,
    environment,
)
from support.disks.simfs import Fault, SimFileSystem

from liftlog.errors import CorruptMetadata, DiskFull, StorageError, SyncFailed
from liftlog.log import ActiveState, Log, LogConfig, RecoveryReport, open_log
from liftlog.log.files.checkpoint_file import read_checkpoint_file, write_checkpoint_file
from liftlog.log.files.manifest import QuarantinedRange, SegmentEntry
from liftlog.log.segment.index import SparseIndex, write_index
from liftlog.records import parse_header

POINTS = DIRECTORY.parent.parent / "recovery-points"
CLEAN = DIRECTORY.parent.parent / "clean"


def new_disk() -> SimFileSystem:
    """Return a disk with a durable directory for the log."""
    fs = SimFileSystem()
    fs.make_directory(DIRECTORY.parent)
    for directory in DIRECTORY.parents:
        fs.fsync_directory(directory)
    fs.operations = 0
    return fs


class World:
    """One machine with its disk, the log of its daemon, and the promises to publishers."""

    def __init__(self) -> None:
        self.fs = new_disk()
        self.promises = Promises()
        self.tombstones_removed_below = 0
        """Set before readers can see files without these tombstones."""

    def create(self, durability: str) -> tuple[Log, Writer]:
        log = create(self.fs)
        return log, Writer(log, self.promises, durability)


Scenario = Callable[[World, str], None]


# --- starting and stopping as the data directory does it ---


def store_state(fs: SimFileSystem, path: str, state: ActiveState | None) -> None:
    if state is not None:
        target = POINTS if path == POINTS.name else CLEAN
        write_checkpoint_file(fs, target, path, {"state": asdict(state)})


def _load_state(fs: SimFileSystem, kind: str) -> ActiveState | None:
    try:
        content = read_checkpoint_file(fs, POINTS.with_name(kind), kind)
    except CorruptMetadata:
        return None
    return None if content is None else ActiveState(**content["state"])


def start(fs: SimFileSystem, boot: str, config: LogConfig = SMALL) -> tuple[Log, RecoveryReport]:
    """Start like a daemon. The clean marker is durably removed before the log is opened, and the
    directories of all streams are durable, even after an interrupted creation."""
    point, clean = _load_state(fs, POINTS.name), _load_state(fs, CLEAN.name)
    if clean is not None:
        fs.unlink(CLEAN)
    fs.fsync_directory(CLEAN.parent)
    fs.fsync_directory(DIRECTORY.parent)
    return open_log(
        DIRECTORY, environment(fs), config, clean=clean, recovery_point=point, boot_id=boot
    )


def live(log: Log, writer: Writer) -> bool:
    """Make commits and rolls, and handle failures like the daemon. Returns True if the stream can
    continue."""
    for round_ in range(7):
        try:
            if round_ == 3:
                log.writer.roll()
            writer.commit(2, 1)
            if round_ % 2:
                writer.flush()
        except SyncFailed:
            writer.waiting = {o: v for o, v in writer.waiting.items() if o < log.durable_end_offset}
            try:
                log.writer.abandon_tail(keep_offsets=writer.durability != "fsync")
            except StorageError:
                return False
            writer.promises.end = max(writer.promises.end, log.durable_end_offset)
            writer.waiting.clear()
        except (StorageError, DiskFull):
            pass  # nacked; the next group may succeed
    return True


# --- rewriting ---


def merge(log: Log, files: Sequence[str]) -> list[SegmentEntry]:
    """Write one file with the batches of several sealed segments, like a rewriting job."""
    fs = log.environment.fs
    old = [segment for segment in log.segments if segment.path.name in files]
    entry = SegmentEntry(
        old[0].base_offset,
        max(segment.generation for segment in old) + 1,
        sum(segment.size_bytes for segment in old),
        old[-1].next_offset,
        sum(segment.record_count for segment in old),
        max(segment.max_timestamp_ns for segment in old),
    )
    path = log.directory / entry.file_name
    raw = b"".join(fs.read(segment.path)[: segment.size_bytes] for segment in old)  # type: ignore[attr-defined]
    file = fs.open(path, create=True)
    file.pwritev([raw], 0)
    file.fdatasync()
    file.close()
    index, position = SparseIndex(entry.base_offset), 0
    while position < len(raw):
        header = parse_header(raw, position)
        index.maybe_add(header.base_offset, position, entry.max_timestamp_ns)
        position += header.length
    write_index(fs, path, index, entry, log.incarnation)
    fs.fsync_directory(log.directory)
    return [entry]


def sealed(log: Log) -> list[str]:
    return [segment.path.name for segment in log.segments if segment.sealed]


# --- the scenarios ---


def groups_and_rolls(world: World, durability: str) -> None:
    log, writer = world.create(durability)
    for sizes in ((1,), (3,), (2, 1, 2), (4,)):
        writer.commit(*sizes)
    writer.flush()
    writer.commit(3)
    log.writer.roll()
    writer.commit(1, 1)
    append(log, world.promises, 2)


def rolls_before_the_sync(world: World, durability: str) -> None:
    """Roll before the sync. A roll syncs the sealed segment, so the log's durable end must be
    right."""
    log, writer = world.create(durability)
    for _ in range(6):
        writer.waiting.update(append(log, world.promises, 4))
        writer.settle()
    assert len(world.promises.acked) > 8


def retention_and_metadata(world: World, durability: str) -> None:
    log, writer = world.create(durability)
    for _ in range(7):
        writer.commit(4)
    writer.flush()
    log.structure.set_metadata({"subject": "x"})
    segment = log.segments[1]
    world.promises.start = segment.base_offset + 1
    log.structure.remove_before(world.promises.start, 1)
    writer.commit(1)


def checkpoints_and_clean_stop(world: World, durability: str) -> None:
    log, writer = world.create(durability)
    writer.commit(3, 3)
    store_state(world.fs, POINTS.name, log.checkpoint())
    writer.commit(2)
    writer.flush()
    store_state(world.fs, POINTS.name, log.checkpoint())
    state = log.close()
    store_state(world.fs, CLEAN.name, state)
    log, report = start(world.fs, "boot-1")
    assert report.clean
    Writer(log, world.promises, durability).commit(2)


def swaps(world: World, durability: str) -> None:
    log, writer = world.create(durability)
    for _ in range(3):
        writer.commit(3)
        log.writer.roll()
        writer.flush()
    files = sealed(log)
    assert len(files) == 3
    world.tombstones_removed_below = log.segments[1].next_offset
    new = merge(log, files[:2])
    log.structure.replace_segments(
        files[:2],
        new,
        horizons={files[2]: BASE_NS},
        tombstones_removed_below=world.tombstones_removed_below,
    )
    writer.commit(2)
    new = merge(log, sealed(log)[:1])
    log.structure.discard_files([entry.file_name for entry in new])
    log.structure.replace_segments(sealed(log)[:2], merge(log, sealed(log)[:2]))
    log.structure.replace_segments((), (), cleaned_below=log.segments[-1].base_offset)
    writer.commit(1)


def quarantine(world: World, durability: str) -> None:
    log, writer = world.create(durability)
    writer.commit(2, 2)
    log.writer.roll()
    writer.settle()
    victim = log.segments[0]
    header = parse_header(world.fs.read(victim.path))
    bad = QuarantinedRange(1, header.next_offset, victim.path.name, 0, header.length, "rot")
    gone = world.promises.copy()
    for offset in range(1, header.next_offset):
        for rows in (gone.acked, gone.after_kill):
            rows.pop(offset, None)
    world.promises.other = gone
    log.structure.quarantine(victim.path.name, [bad])
    world.promises.become(gone)
    writer.commit(1)


def truncated_suffix(world: World, durability: str) -> None:
    log, writer = world.create(durability)
    for _ in range(2):
        writer.commit(4)
        writer.commit(4)
        log.writer.roll()
    writer.commit(4)
    writer.flush()
    store_state(world.fs, POINTS.name, log.checkpoint())
    _truncate(world, writer, log.log_end_offset - 3)
    writer.commit(3)
    store_state(world.fs, POINTS.name, log.checkpoint())
    _truncate(world, writer, log.segments[1].base_offset + 5)
    writer.commit(1)
    writer.commit(2)
    _truncate(world, writer, log.log_end_offset - 2)
    writer.commit(4)


def _truncate(world: World, writer: Writer, offset: int) -> None:
    writer.flush()
    piece = writer.log.read(offset, 1)
    assert piece is not None
    with piece:
        end = piece.first_offset
    world.promises.other = world.promises.without(end)
    assert writer.log.truncate_suffix(offset) == end
    world.promises.become(world.promises.other)


def truncated_prefix(world: World, durability: str) -> None:
    log, writer = world.create(durability)
    for _ in range(2):
        writer.commit(4)
        log.writer.roll()
    writer.commit(4)
    writer.flush()
    for offset in (log.segments[1].base_offset + 1, None):
        offset = log.log_end_offset + 5 if offset is None else offset
        world.promises.start = offset
        log.truncate_prefix(offset)
        world.promises.end = log.log_end_offset
        writer.commit(4)
        writer.commit(4)


def failed_syncs(world: World, durability: str) -> None:
    log, writer = world.create(durability)
    writer.commit(2)
    writer.flush()
    for _ in range(2):
        append(log, world.promises, 2, 1)
        if durability != "fsync":
            log.writer.admit_early_acks()
            log.writer.note_acked(log.log_end_offset)
            world.promises.end = log.log_end_offset
        world.fs.faults = [Fault("fsync", path=".log")]
        for offset in writer.waiting:  # lost with the tail, and recorded as lost
            world.promises.after_kill.pop(offset, None)
        writer.waiting.clear()
        try:
            log.sync()
        except SyncFailed:
            log.writer.abandon_tail(keep_offsets=durability != "fsync")
        writer.commit(1)


def batches_of_another_log(world: World, durability: str) -> None:
    """Append raw batches like a follower, and truncate the log where its leader has begun another
    epoch."""
    leader_fs, written = SimFileSystem(), Promises()
    leader = create(leader_fs)
    for size in (3, 2, 4):
        commit(leader, written, size)
    log, writer = world.create(durability)
    _follow(world, writer, leader, written)
    world.promises.other = world.promises.without(4)
    log.truncate_suffix(4)
    world.promises.become(world.promises.other)
    written.become(written.without(leader.truncate_suffix(4)))
    leader, _ = open_log(DIRECTORY, environment(leader_fs.kill()), SMALL, boot_id="boot-2")
    for size in (2, 3):
        commit(leader, written, size)
    _follow(world, writer, leader, written)
    assert log.view.manifest.epochs[-1] == (2, 4)


def _follow(world: World, writer: Writer, leader: Log, written: Promises) -> None:
    log, promises = writer.log, world.promises
    promises.written = written.written
    while (piece := leader.read(log.log_end_offset, 1)) is not None:
        with piece:
            raw, end = piece.pread(), piece.next_offset
        rows = {offset: written.acked[offset] for offset in range(log.log_end_offset, end)}
        writer.store(rows, lambda raw=raw: log.writer.append_raw(raw))


SCENARIOS: list[Scenario] = [
    batches_of_another_log,
    groups_and_rolls,
    rolls_before_the_sync,
    retention_and_metadata,
    checkpoints_and_clean_stop,
    swaps,
    quarantine,
    truncated_suffix,
    truncated_prefix,
    failed_syncs,
]
