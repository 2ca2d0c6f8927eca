"""Repair: the records that survive each kind of damage, writes after a repair, and crashes during a
repair."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.disks.logs import (
    DIRECTORY,
    Promises,
    append,
    check,
    commit,
    create,
    flip,
    read_all,
    reopen,
)
from support.disks.simfs import MachineStopped, SimFileSystem

from liftlog.errors import CorruptMetadata
from liftlog.log import ActiveState, Log
from liftlog.log.data_dir import KnownStates
from liftlog.log.files.manifest import read_manifest
from liftlog.log.offline.filesystems import KeepingFileSystem
from liftlog.log.offline.rebuild import rebuild_manifest
from liftlog.log.offline.repair import Repair
from liftlog.log.offline.verify import QUARANTINE, TAIL, Finding
from liftlog.records import parse_header
from liftlog.records.format import HEADER_SIZE

KEPT = Path("/data/repaired/orders")
METADATA: dict[str, Any] = {"settings": {"subject": "orders.>"}}
Damage = Callable[[SimFileSystem, Log], range]
"""Damages the files, and returns the acked offsets that are lost."""


def stored(*, clean: bool) -> tuple[SimFileSystem, Promises, Log, KnownStates]:
    """Return a log of several segments, of which the last holds three batches."""
    fs, promises = SimFileSystem(), Promises()
    log = create(fs)
    fs.make_directory(DIRECTORY.parent.parent / "repaired")
    log.structure.set_metadata(METADATA)
    while log.segment_count < 4:
        commit(log, promises, 2)
    commit(log, promises, 3)
    state = log.checkpoint()
    commit(log, promises, 1)
    if clean:
        return fs, promises, log, KnownStates(clean=log.close())
    append(log, promises, 2)
    return fs.kill(), promises, log, KnownStates(recovery_point=state)


def batches(fs: SimFileSystem, log: Log, segment: int) -> list[tuple[int, int, range]]:
    """(position, end, offsets) of each batch of one segment."""
    one = log.segments[segment]
    raw = fs.read(one.path)
    found, position = [], 0
    while position < one.size_bytes:
        header = parse_header(raw, position)
        end = position + header.length
        found.append((position, end, range(header.base_offset, header.next_offset)))
        position = end
    return found


def run(
    fs: SimFileSystem, states: KnownStates, metadata: dict[str, Any] | None = None
) -> tuple[list[Finding], KeepingFileSystem]:
    keeping = KeepingFileSystem(fs, KEPT)
    return Repair(DIRECTORY, states, metadata, boot_id="boot-1").run(keeping), keeping


def plan(
    fs: SimFileSystem, states: KnownStates, metadata: dict[str, Any] | None = None
) -> list[Finding]:
    return Repair(DIRECTORY, states, metadata, boot_id="boot-1").plan(fs)


def contents(fs: SimFileSystem, directory: Path = DIRECTORY) -> dict[str, bytes]:
    return {name: bytes(fs.read(directory / name)) for name in fs.list_directory(directory)}


def start(fs: SimFileSystem, states: KnownStates) -> Log:
    log, _ = reopen(fs, clean=states.clean, recovery_point=states.recovery_point)
    return log


# --- kinds of damage ---


def flipped_body(segment: int, batch: int) -> Damage:
    def damage(fs: SimFileSystem, log: Log) -> range:
        position, _, offsets = batches(fs, log, segment)[batch]
        flip(fs, log.segments[segment].path, position + HEADER_SIZE + 20)
        return offsets

    return damage


def flipped_header(segment: int, batch: int) -> Damage:
    def damage(fs: SimFileSystem, log: Log) -> range:
        position, _, offsets = batches(fs, log, segment)[batch]
        flip(fs, log.segments[segment].path, position + 9)
        return offsets

    return damage


def lost_segment(segment: int) -> Damage:
    def damage(fs: SimFileSystem, log: Log) -> range:
        one = log.segments[segment]
        fs.remove(one.path)
        return range(one.base_offset, one.next_offset)

    return damage


def cut_segment(segment: int) -> Damage:
    """The last batch of the file is torn."""

    def damage(fs: SimFileSystem, log: Log) -> range:
        one = log.segments[segment]
        position, end, offsets = batches(fs, log, segment)[-1]
        fs.replace(one.path, fs.read(one.path)[: (position + end) // 2])
        return offsets

    return damage


MANIFESTS = ("manifest", "manifest.copy")


def remove_manifest(fs: SimFileSystem) -> None:
    for name in MANIFESTS:
        fs.remove(DIRECTORY / name)


def lost_manifest(fs: SimFileSystem, log: Log) -> range:
    remove_manifest(fs)
    return range(0)


def damaged_manifest(fs: SimFileSystem, log: Log) -> range:
    for name in MANIFESTS:
        flip(fs, DIRECTORY / name, 100)
    return range(0)


def lost_manifest_and_body(fs: SimFileSystem, log: Log) -> range:
    remove_manifest(fs)
    return flipped_body(1, 1)(fs, log)


def lost_manifest_and_segment(fs: SimFileSystem, log: Log) -> range:
    remove_manifest(fs)
    return lost_segment(1)(fs, log)


def lost_manifest_slot_and_indexes(fs: SimFileSystem, log: Log) -> range:
    for name in fs.list_directory(DIRECTORY):
        if name in (*MANIFESTS, "acked") or name.endswith(".index"):
            fs.remove(DIRECTORY / name)
    return range(0)


DAMAGES = {
    "body in a sealed segment": flipped_body(1, 1),
    "last body of a sealed segment": flipped_body(1, -1),
    "header in a sealed segment": flipped_header(0, 1),
    "body in the active segment": flipped_body(-1, 0),
    "header in the active segment": flipped_header(-1, 0),
    "a sealed segment is gone": lost_segment(1),
    "a sealed segment is torn": cut_segment(2),
    "the manifest is gone": lost_manifest,
    "the manifest is damaged": damaged_manifest,
    "the manifest and a body": lost_manifest_and_body,
    "the manifest and a segment": lost_manifest_and_segment,
    "manifest, slot and indexes": lost_manifest_slot_and_indexes,
}


@pytest.fixture(params=list(DAMAGES))
def damage(request: pytest.FixtureRequest) -> Damage:
    return DAMAGES[request.param]


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "killed"])
def test_what_can_be_read_survives_and_the_log_goes_on(damage: Damage, clean: bool) -> None:
    fs, promises, log, states = stored(clean=clean)
    lost = damage(fs, log)
    before = contents(fs)
    planned = plan(fs, states, METADATA)
    assert contents(fs) == before, "a plan changed something"
    assert planned

    done, keeping = run(fs, states, METADATA)
    assert [step.kind for step in done] == [step.kind for step in planned]
    after = contents(fs)
    for name, raw in before.items():
        kept = after.get(name)
        trimmed = kept is not None and raw.startswith(kept) and not any(raw[len(kept) :])
        if name != "acked" and not trimmed:
            assert fs.read(KEPT / name) == raw, f"no copy of {name}"
    assert "manifest" in keeping.kept or "manifest" not in before
    quarantined = [step for step in done if step.kind == QUARANTINE]
    assert sum([step.next_offset - step.first_offset for step in quarantined]) >= len(lost)

    again = start(fs, states)
    assert again.view.manifest.metadata == METADATA
    found = check(again, promises, lost=lost)
    commit(again, promises, 2)
    assert len(check(again, promises, lost=lost)) == len(found) + 2
    state = again.close()
    third = start(fs, KnownStates(clean=state))
    check(third, promises, lost=lost)
    third.close()
    assert plan(fs, KnownStates(clean=third.active_state())) == [], "a second repair has work to do"


@pytest.mark.parametrize("clean", [True, False])
def test_a_whole_log_is_left_alone(clean: bool) -> None:
    fs, _, _, states = stored(clean=clean)
    before = contents(fs)
    assert run(fs, states)[0] == []
    assert contents(fs) == before
    assert not fs.exists(KEPT)


def test_readers_are_told_exactly_what_is_gone() -> None:
    fs, promises, log, states = stored(clean=True)
    lost = flipped_body(1, 1)(fs, log)
    (step,) = run(fs, states)[0]
    assert (step.kind, step.segment) == (QUARANTINE, log.segments[1].path.name)
    assert range(step.first_offset or 0, step.next_offset or 0) == lost
    again = start(fs, states)
    (bad,) = again.view.manifest.quarantined
    assert (bad.first_offset, bad.next_offset) == (lost.start, lost.stop)
    assert set(read_all(again)) == set(promises.acked) - set(lost)


def test_damage_that_grew_becomes_one_range() -> None:
    fs, _, log, states = stored(clean=True)
    one = flipped_body(1, 1)(fs, log)
    run(fs, states)
    two = flipped_header(1, 2)(fs, log)
    (step,) = run(fs, states)[0]
    assert step.next_offset == two.stop
    manifest = read_manifest(fs, DIRECTORY)
    assert manifest is not None
    offsets = {n for bad in manifest.quarantined for n in range(bad.first_offset, bad.next_offset)}
    assert offsets == {*one, *two}


def test_a_torn_tail_is_cut_and_kept() -> None:
    fs, promises, log, states = stored(clean=False)
    path = log.segments[-1].path
    position, end, _ = batches(fs, log, -1)[-1]
    torn = fs.read(path)[: end - 9]
    fs.replace(path, torn)
    steps, keeping = run(fs, states)
    (step,) = steps
    assert (step.kind, step.position) == (TAIL, position)
    tail = f"{path.name}.{position}.tail"
    assert tail in keeping.kept
    assert fs.read(KEPT / tail) == torn[position:]
    again = start(fs, states)
    commit(again, promises, 1)
    check(again, promises)
    assert not again.view.manifest.quarantined


def test_without_settings_a_lost_manifest_is_refused() -> None:
    fs, _, log, states = stored(clean=True)
    lost_manifest(fs, log)
    before = contents(fs)
    with pytest.raises(CorruptMetadata, match="settings"):
        run(fs, states)
    assert contents(fs) == before


def test_the_incarnation_is_kept_where_it_is_proven() -> None:
    fs, _, log, states = stored(clean=True)
    lost_manifest(fs, log)
    run(fs, states, METADATA)
    assert start(fs, states).incarnation == log.incarnation


def test_the_incarnation_of_an_older_stream_is_not_taken() -> None:
    fs, _, log, states = stored(clean=True)
    lost_manifest(fs, log)
    fs.remove(DIRECTORY / "acked")
    assert states.clean is not None
    values = {name: getattr(states.clean, name) for name in ActiveState.__slots__}
    older = ActiveState(**(values | {"incarnation": "f" * 32, "position": 8, "next_offset": 3}))
    run(fs, KnownStates(clean=older), METADATA)
    assert start(fs, KnownStates()).incarnation not in (log.incarnation, "f" * 32)


def test_a_rewritten_segment_stands_in_for_its_sources() -> None:
    fs, promises, log, states = stored(clean=True)
    first, second = log.segments[:2]
    merged = fs.read(first.path)[: first.size_bytes] + fs.read(second.path)[: second.size_bytes]
    half = fs.read(second.path)[: batches(fs, log, 1)[0][1]]
    new, unfinished = (
        DIRECTORY / f"{first.base_offset:020d}.1.log",
        DIRECTORY / f"{second.base_offset:020d}.1.log",
    )
    for path, raw in ((new, merged), (unfinished, half)):
        file = fs.open(path, create=True)
        file.pwritev([raw], 0)
        file.fdatasync()
        file.close()
    lost_manifest(fs, log)
    made = rebuild_manifest(fs, DIRECTORY, states.all(), METADATA)
    assert made is not None
    assert [entry.file_name for entry in made.manifest.segments] == [
        new.name,
        *(segment.path.name for segment in log.segments[2:]),
    ]
    run(fs, states, METADATA)
    again = start(fs, states)
    check(again, promises)
    assert not again.view.manifest.quarantined
    assert fs.read(KEPT / first.path.name) == merged[: first.size_bytes]


def test_segments_that_contradict_each_other_are_refused() -> None:
    fs, _, log, states = stored(clean=True)
    first, second = log.segments[:2]
    border = batches(fs, log, 1)[0][1]
    overlapping = DIRECTORY / f"{first.base_offset:020d}.1.log"
    file = fs.open(overlapping, create=True)
    file.pwritev([fs.read(first.path)[: first.size_bytes] + fs.read(second.path)[:border]], 0)
    file.close()
    fs.remove(first.path)
    lost_manifest(fs, log)
    with pytest.raises(CorruptMetadata, match="hold the same offsets"):
        plan(fs, states, METADATA)


def truncated() -> tuple[SimFileSystem, Promises, Log, KnownStates, bytes]:
    """Offset 3 was assigned twice. The last result is the content of the first segment before
    that."""
    fs, promises = SimFileSystem(), Promises()
    log = create(fs)
    log.structure.set_metadata(METADATA)
    commit(log, promises, 2)
    commit(log, promises, 2)
    before = fs.read(log.segments[0].path)
    log.truncate_suffix(3)
    promises.acked = {offset: value for offset, value in promises.acked.items() if offset < 3}
    commit(log, promises, 1)
    return fs, promises, log, KnownStates(clean=log.close()), before


def test_a_truncated_log_is_rebuilt_as_it_was() -> None:
    fs, promises, log, states, _ = truncated()
    lost_manifest(fs, log)
    run(fs, states, METADATA)
    again = start(fs, states)
    check(again, promises)
    assert (again.log_end_offset, again.view.manifest.lineage) == (4, log.view.manifest.lineage)
    commit(again, promises, 1)
    check(again, promises)


def test_what_was_truncated_does_not_come_back_unseen() -> None:
    """Without the manifest, the valid end of the truncated segment is unknown."""
    fs, _, log, states, before = truncated()
    fs.replace(log.segments[0].path, before)
    lost_manifest(fs, log)
    with pytest.raises(CorruptMetadata, match="hold the same offsets"):
        plan(fs, states, METADATA)


@pytest.mark.parametrize(
    "kind",
    ["body in a sealed segment", "the manifest and a segment", "manifest, slot and indexes"],
)
def test_the_machine_stops_at_every_operation_of_a_repair(kind: str) -> None:
    fs, promises, log, states = stored(clean=False)
    lost = DAMAGES[kind](fs, log)
    path = log.segments[-1].path
    end = batches(fs, log, -1)[-1][1]
    fs.replace(path, fs.read(path)[: end - 9])
    whole = fs.power_cut("all")
    run(whole, states, METADATA)
    for stop_at in range(whole.operations):
        trial = fs.power_cut("all")
        trial.stop_at = stop_at
        with pytest.raises(MachineStopped):
            run(trial, states, METADATA)
        after = trial.power_cut("some", stop_at)
        assert plan(after, states, METADATA) is not None
        Repair(DIRECTORY, states, METADATA, boot_id="boot-1").run(
            KeepingFileSystem(after, KEPT.with_name("again"))
        )
        again = start(after, states)
        known = Promises()
        known.written = {offset: set(one) for offset, one in promises.written.items()}
        known.acked = dict(promises.acked)
        check(again, known, lost=lost)
        commit(again, known, 1)
        check(again, known, lost=lost)
