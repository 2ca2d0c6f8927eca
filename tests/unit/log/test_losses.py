"""Whatever single file or write is lost, or operation fails, no acked offset is assigned again.

A table has each loss, in each durability mode, after a kill and after a power cut. Records may be
lost if nothing could have preserved them, but an offset never gets another record. All other
records still exist.
"""

from __future__ import annotations

import errno
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from support.disks.logs import (
    DIRECTORY,
    DURABILITIES,
    Promises,
    Writer,
    commit,
    create,
    encode,
    flip,
    read_all,
    reopen,
)
from support.disks.simfs import Fault, MachineStopped, SimFileSystem
from support.rounds import stride
from support.worlds.crash_scenarios import CLEAN, POINTS, World, live, start, store_state

from liftlog.errors import (
    CorruptBatch,
    CorruptMetadata,
    CorruptRange,
)
from liftlog.log import Log
from liftlog.log.files.acked_end import ACKED_END_NAME
from liftlog.log.segment.index import index_path
from liftlog.log.segment.walk import is_covered
from liftlog.records import iter_batches, parse_header
from liftlog.records.header import verify_body

Harm = Callable[[SimFileSystem, Log], None]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "liftlog.log")


@dataclass(frozen=True)
class Loss:
    """A change of the disk while the daemon is stopped."""

    name: str
    harm: Harm
    costs: str = "nothing"  # "nothing", "one batch" or "the last batch"


def _last_batch(fs: SimFileSystem, log: Log) -> tuple[int, int]:
    """Return position and length of the last batch of the active segment on the disk."""
    raw = fs.read(log.segments[-1].path)
    position = length = 0
    while True:
        try:
            header = parse_header(raw, position + length)
            verify_body(raw, header, position + length)
        except CorruptBatch:
            return position, length
        position, length = position + length, header.length


def _flip_active(inside: int) -> Harm:
    """Flip one bit of the last batch on the disk."""

    def harm(fs: SimFileSystem, log: Log) -> None:
        position, length = _last_batch(fs, log)
        assert length
        flip(fs, log.segments[-1].path, position + inside % length)

    return harm


def _flip_sealed(fs: SimFileSystem, log: Log) -> None:
    flip(fs, log.segments[0].path, 70)


def _torn_tail(fs: SimFileSystem, log: Log) -> None:
    """Add an interrupted write: half a batch after the last one."""
    path = log.segments[-1].path
    position, length = _last_batch(fs, log)
    header = parse_header(fs.read(path), position)
    batch = bytes(encode(log, [b"under way"] * 3, first=header.next_offset).data)
    fs.replace(path, fs.read(path)[: position + length] + batch[: len(batch) // 2])


def _remove(*names: str) -> Harm:
    def harm(fs: SimFileSystem, log: Log) -> None:
        for name in names:
            for path in (DIRECTORY / name, POINTS.with_name(name)):
                if fs.exists(path):
                    fs.remove(path)

    return harm


def _spoil(*names: str) -> Harm:
    def harm(fs: SimFileSystem, log: Log) -> None:
        for name in names:
            for path in (DIRECTORY / name, POINTS.with_name(name)):
                if fs.exists(path):
                    fs.replace(path, fs.read(path)[:-3] + b"\x00\xff\x00")

    return harm


def _indexes(spoil: bool) -> Harm:
    def harm(fs: SimFileSystem, log: Log) -> None:
        for segment in log.segments:
            path = index_path(segment.path)
            if fs.exists(path) and spoil:
                fs.replace(path, b"\x07" * len(fs.read(path)))
            elif fs.exists(path):
                fs.remove(path)

    return harm


LOSSES = [
    Loss("nothing", lambda fs, log: None),
    Loss("torn tail", _torn_tail),
    Loss("rot in the header of the last batch", _flip_active(9), "the last batch"),
    Loss("rot in the body of the last batch", _flip_active(70), "the last batch"),
    Loss("rot in the padding of the last batch", _flip_active(-1), "the last batch"),
    Loss("rot in a sealed segment", _flip_sealed, "one batch"),
    Loss("index", _indexes(spoil=False)),
    Loss("rot in the index", _indexes(spoil=True)),
    Loss("clean marker", _remove(CLEAN.name)),
    Loss("rot in the clean marker", _spoil(CLEAN.name)),
    Loss("recovery points", _remove(POINTS.name)),
    Loss("rot in the recovery points", _spoil(POINTS.name)),
    Loss("slot", _remove(ACKED_END_NAME)),
    Loss("rot in the slot", _spoil(ACKED_END_NAME)),
    Loss("manifest", _remove("manifest")),
    Loss("rot in the manifest", _spoil("manifest")),
    Loss("copy of the manifest", _remove("manifest.copy")),
    Loss("rot in the copy of the manifest", _spoil("manifest.copy")),
    Loss("both manifests", _remove("manifest", "manifest.copy"), "the stream"),
    Loss("rot in both manifests", _spoil("manifest", "manifest.copy"), "the stream"),
]


def _world(durability: str, stop: str) -> tuple[World, SimFileSystem, Log, str]:
    """Run a daemon until its end. Returns the disk that it leaves."""
    world = World()
    log, writer = world.create(durability)
    for _ in range(5):
        writer.commit(3)
    store_state(world.fs, POINTS.name, log.checkpoint())
    writer.commit(2, 1)
    writer.flush()
    writer.commit(2)
    if stop == "clean stop":
        writer.flush()
        store_state(world.fs, CLEAN.name, log.close())
        return world, world.fs.power_cut("none"), log, "boot-2"
    if stop == "killed":
        return world, world.fs.kill(), log, "boot-1"
    return world, world.fs.power_cut("none"), log, "boot-2"


@pytest.mark.parametrize("stop", ["killed", "power cut", "clean stop"])
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_no_single_loss_gives_an_acked_offset_away(loss: Loss, durability: str, stop: str) -> None:
    world, image, log, boot = _world(durability, stop)
    acked_end, promises = log.log_end_offset, world.promises
    promised = promises.acked | (promises.after_kill if stop == "killed" else {})
    assert acked_end == promises.end
    loss.harm(image, log)
    if loss.costs == "the stream":
        before = {name: image.read(DIRECTORY / name) for name in image.list_directory(DIRECTORY)}
        with pytest.raises(CorruptMetadata):
            start(image, boot)
        now = {name: image.read(DIRECTORY / name) for name in image.list_directory(DIRECTORY)}
        assert now == before, "what cannot be read is left alone"
        return
    again, _ = start(image, boot)
    assert again.log_end_offset >= acked_end, "an acked offset would be assigned again"
    found = _readable(again)
    missing = {offset for offset, value in promised.items() if found.get(offset) != value}
    if loss.costs == "nothing":
        assert not missing
    assert len(missing) <= 3, "one bad bit costs one batch"
    assert all(value in promises.written[offset] for offset, value in found.items())
    # And so it stays: what is acked from here on is there after the next power cut.
    writer = Writer(again, promises, "fsync")
    writer.commit(2)
    fresh = [promises.end - 2, promises.end - 1]
    assert fresh[0] >= acked_end
    third, _ = start(image.power_cut("none"), "boot-3")
    last = _readable(third)
    assert {offset: last.get(offset) for offset in fresh} == {
        offset: promises.acked[offset] for offset in fresh
    }
    assert last.items() >= found.items()
    assert third.log_end_offset > fresh[1]


def _readable(log: Log) -> dict[int, bytes]:
    """Read like a reader that checks bodies and continues after damage."""
    found: dict[int, bytes] = {}
    offset = log.log_start_offset
    while True:
        try:
            piece = log.read(offset, 1)
            if piece is None:
                return found
            with piece:
                raw = piece.pread()
            for batch in iter_batches(raw):
                for record in batch.trim(offset):
                    assert record.value is not None
                    found[record.offset] = record.value
                offset = batch.next_offset
        except CorruptRange as damage:
            offset = damage.next_offset
        except CorruptBatch:
            offset = parse_header(raw).next_offset


# --- operations that fail while the daemon runs ---

FAILURES = [
    Fault("write", path=".log"),
    Fault("write", path=".log", error=errno.ENOSPC),
    Fault("fsync", path=".log"),
    Fault("create", path=".log", error=errno.EMFILE),
    Fault("allocate", path=".log", error=errno.ENOSPC),
    Fault("truncate", path=".log"),
    Fault("create", path=".index", error=errno.EROFS),
    Fault("write", path=".index"),
    Fault("fsync", path=".index"),
    Fault("create", path="manifest", error=errno.EROFS),
    Fault("write", path="manifest", error=errno.ENOSPC),
    Fault("fsync", path="manifest"),
    Fault("rename", path="manifest"),
    Fault("rename", path="manifest", after=True),
    Fault("fsync-directory"),
]


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("number", range(len(FAILURES)))
def test_no_failed_operation_gives_an_acked_offset_away(
    number: int, durability: str, times: int
) -> None:
    """The operation fails at every place where it occurs, once or twice in succession."""
    template = FAILURES[number]
    for countdown in range(1, 60, stride()):
        fault = Fault(
            template.operation, template.error, template.path, countdown, times,
            after=template.after,
        )  # fmt: skip
        world = World()
        log, writer = world.create(durability)
        world.fs.faults = [fault]
        stopped = not live(log, writer)
        for image, boot in (
            (world.fs.power_cut("none"), "boot-2"),
            (world.fs.power_cut("some", countdown), "boot-2"),
            (world.fs.power_cut("all"), "boot-2"),
            (world.fs.kill(), "boot-1"),
        ):
            again, _ = start(image, boot)
            assert again.log_end_offset >= world.promises.end
            found = read_all(again)
            for offset, value in world.promises.acked.items():
                assert found.get(offset) == value, f"acked offset {offset} is gone"
        if not stopped:
            assert log.log_end_offset == world.promises.end
        if fault.countdown > 0:  # it never came to that
            assert countdown > 1
            return
    raise AssertionError("the scenario is longer than the test thinks")


def test_a_start_that_finds_no_active_segment_may_be_interrupted() -> None:
    """After a power cut, the file and the slot are missing, and the machine stops again at any step
    of the start. The next start must not treat the empty file as the complete log."""
    for stop_at in itertools.count():
        fs, promises = SimFileSystem(), Promises()
        log = create(fs)
        for _ in range(3):
            commit(log, promises, 1)
        image = fs.power_cut("none")
        image.remove(log.segments[-1].path)
        if image.exists(DIRECTORY / ACKED_END_NAME):
            image.remove(DIRECTORY / ACKED_END_NAME)
        image.stop_at = image.operations + stop_at
        try:
            reopen(image, boot="boot-2")
        except MachineStopped:
            again, _ = reopen(image.power_cut("all"), boot="boot-3")
        else:
            again, _ = reopen(image.power_cut("none"), boot="boot-3")
            stop_at = -1
        assert again.log_end_offset > max(promises.acked)
        assert is_covered(1, max(promises.acked) + 1, again.view.manifest.quarantined)
        if stop_at < 0:
            return
