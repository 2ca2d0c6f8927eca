"""The manifest has two copies: damage, loss and a restored older copy have no effect, or are
reported."""

from __future__ import annotations

import itertools
import json

import pytest
from support.disks.logs import DIRECTORY, SMALL, Facts, Promises, check, commit, create, reopen
from support.disks.simfs import Fault, Keep, MachineStopped, SimFileSystem
from support.rounds import stride
from support.worlds.crash_scenarios import SCENARIOS, Scenario, World, start

from liftlog.errors import CorruptMetadata, CorruptRange
from liftlog.log import Log
from liftlog.log.files.checkpoint_file import read_checkpoint_file, write_checkpoint_file
from liftlog.log.files.manifest import COPY_NAME, MANIFEST_NAME, read_manifest

MAIN, COPY = DIRECTORY / MANIFEST_NAME, DIRECTORY / COPY_NAME


def _log(commits: int = 16) -> tuple[SimFileSystem, Log, Promises]:
    fs, promises = SimFileSystem(), Promises()
    log = create(fs)
    for _ in range(commits):
        commit(log, promises, 3)
    return fs, log, promises


def _unlisted(fs: SimFileSystem) -> list[str]:
    return [name for name in fs.list_directory(DIRECTORY) if name.endswith(".unlisted")]


@pytest.mark.parametrize("victim", [MAIN, COPY])
def test_any_flipped_bit_costs_nothing(victim: object) -> None:
    fs, log, promises = _log()
    state = log.close()
    path = MAIN if victim == MAIN else COPY
    whole = fs.read(path)
    for position, bit in itertools.product(range(len(whole)), range(8)):
        # All of the first line, some of the rest.
        if position > 60 and (position + bit) % stride(7):
            continue
        image = fs.kill().power_cut("all")
        raw = bytearray(whole)
        raw[position] ^= 1 << bit
        image.replace(path, bytes(raw))
        again, report = reopen(image, clean=state)
        assert report.clean
        assert again.log_end_offset == log.log_end_offset
        # A blank for a blank is no damage.
        assert image.read(path) == whole or read_manifest(image, DIRECTORY) is not None
        assert not _unlisted(image)
    check(again, promises)


@pytest.mark.parametrize("stop_at", [None, "each"])
@pytest.mark.parametrize("victim", ["manifest", "copy", "both"])
def test_an_older_manifest_put_back(victim: str, stop_at: str | None) -> None:
    """If one of them is replaced, the other has the newer state. If both are replaced, unlisted
    files are kept aside, and the loss is reported, even if the start is interrupted anywhere."""
    for number in itertools.count():
        fs, log, promises = _log(3)
        old = fs.read(MAIN)
        for _ in range(12):
            commit(log, promises, 3)
        assert log.segment_count > 3
        newest = {one.path.name: fs.read(one.path) for one in log.segments[:-1]}
        image = fs.power_cut("all")
        for path in (MAIN, COPY):
            if victim == "both" or path == (MAIN if victim == "manifest" else COPY):
                image.replace(path, old)
        if stop_at is not None:
            image.stop_at = number
            try:
                reopen(image)
            except BaseException as stop:
                if type(stop).__name__ != "MachineStopped":
                    raise
            else:
                return
            image = image.kill() if number % 2 else image.power_cut("some", number)
        again, report = reopen(image, boot="boot-2")
        assert again.log_end_offset >= log.log_end_offset
        if victim != "both":
            check(again, promises)
            assert not _unlisted(image)
        else:
            facts = Facts.of(again)
            gone = [offset for offset in promises.acked if offset not in facts.found]
            assert gone
            assert all(again.is_quarantined(offset, offset + 1) for offset in gone)
            kept = {name.removesuffix(".unlisted"): name for name in _unlisted(image)}
            for name, raw in newest.items():
                where = name if image.exists(DIRECTORY / name) else kept[name]
                assert image.read(DIRECTORY / where) == raw, "no intact segment is deleted"
        if stop_at is None:
            assert report.events or victim == "copy"
            return


def test_rewritten_files_are_kept_when_an_older_manifest_lists_their_sources() -> None:
    """Their sources were removed, so these files have the only copy of the records."""
    fs, log, promises = _log()
    old = fs.read(MAIN)
    first = log.segments[0]
    target = DIRECTORY / f"{first.base_offset:020d}.1.log"
    file = fs.open(target, create=True)
    file.pwritev([fs.read(first.path)], 0)
    file.fdatasync()
    entry = type(first.entry())(**{**_fields(first.entry()), "generation": 1})
    log.structure.replace_segments([first.path.name], [entry])
    image = fs.power_cut("all")
    for path in (MAIN, COPY):
        image.replace(path, old)
    again, _ = reopen(image)
    assert _unlisted(image) == [f"{target.name}.unlisted"]
    assert image.read(DIRECTORY / _unlisted(image)[0]) == fs.read(target)
    with pytest.raises(CorruptRange):
        again.read(1, 100)
    check(again, promises, lost=range(first.base_offset, first.next_offset))


def _fields(entry: object) -> dict[str, object]:
    return {name: getattr(entry, name) for name in entry.__slots__}  # type: ignore[attr-defined]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_crash_leaves_nothing_that_is_kept_aside(scenario: Scenario) -> None:
    """A start never mistakes the result of a crash for an old manifest."""
    for keep, seed in (("all", 0), ("none", 0), ("some", 1), ("some", 2), ("last", 0)):
        for stop_at in range(0, 400, 5):
            world = World()
            world.fs.stop_at = stop_at
            try:
                scenario(world, "fsync")
            except BaseException as stop:
                if type(stop).__name__ != "MachineStopped":
                    raise
            else:
                break
            image = world.fs.power_cut(keep, seed)  # type: ignore[arg-type]
            if image.exists(DIRECTORY) and any(image.exists(path) for path in (MAIN, COPY)):
                start(image, "boot-2")
                assert not _unlisted(image)


@pytest.mark.parametrize("keep", ["none", "some", "all", "last"])
def test_a_manifest_of_an_earlier_version_counts_more_than_an_older_copy(keep: Keep) -> None:
    """A daemon of that version has run since, which did not use the copy. Also if the first start
    after that is interrupted anywhere, and only one of the two renames reaches the disk."""
    fs, log, promises = _log(6)
    stale = fs.read(COPY)
    for _ in range(6):
        commit(log, promises, 3)
    content = read_checkpoint_file(fs, MAIN, "manifest")
    assert content is not None
    del content["sequence"]
    disk = fs.power_cut("all")
    disk.replace(COPY, stale)
    write_checkpoint_file(disk, MAIN, "manifest", json.loads(json.dumps(content)))
    for stop_at in itertools.count():
        image = disk.power_cut("all")
        image.stop_at = stop_at
        try:
            reopen(image)
        except MachineStopped:
            interrupted = True
        else:
            interrupted = False
        second = image.power_cut(keep, stop_at)
        again, _ = reopen(second, boot="boot-2")
        check(again, promises)
        assert not _unlisted(second)
        assert not again.view.manifest.quarantined
        assert second.read(COPY) == second.read(MAIN)
        if not interrupted:
            return


def test_both_damaged_is_refused_and_left_alone() -> None:
    fs, _, _ = _log()
    image = fs.power_cut("all")
    for path in (MAIN, COPY):
        image.replace(path, image.read(path)[:-5])
    before = image.digest()
    with pytest.raises(CorruptMetadata):
        reopen(image)
    assert image.digest() == before


def test_a_full_disk_keeps_a_damaged_copy_from_being_mended_and_nothing_else() -> None:
    fs, log, promises = _log()
    state = log.close()
    image = fs.power_cut("all")
    image.replace(COPY, b"x")
    stray = DIRECTORY / "00000000000000000001.7.log"
    image.open(stray, create=True)
    image.faults = [Fault("create", error=28, path="manifest")]
    again, _ = reopen(image, clean=state, config=SMALL)
    check(again, promises)
    assert image.exists(stray), "nothing is removed by a manifest that is there only once"
