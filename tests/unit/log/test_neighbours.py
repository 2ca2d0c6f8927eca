"""A derived file of a neighbour, with right checksums, changes no result of a reader, and no data
are quarantined because of it.

`make storage-faults` puts the file of every neighbour in every place; `make test` a sample.
"""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from support.disks.logs import DIRECTORY, reopen
from support.disks.neighbours import OTHER, Neighbours, check_all_readers, neighbours, swaps
from support.disks.small_runs import index_small_segments, read_small_answers_by_subject
from support.rounds import one_in
from support.worlds.rewriting import ROLL_ON_DEMAND

from liftlog.log.files.acked_end import ACKED_END_NAME


@pytest.fixture(autouse=True)
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Subject indexes are useful in these small segments, too."""
    index_small_segments(monkeypatch)
    read_small_answers_by_subject(monkeypatch)


@pytest.fixture(name="world")
def _world() -> Neighbours:
    return neighbours()


@pytest.mark.parametrize("start", ["as it is", "after a clean stop", "after a kill"])
def test_the_file_of_a_neighbour_misleads_no_reader(world: Neighbours, start: str) -> None:
    fs, truth = world.fs, world.truth
    log, _ = reopen(fs, config=ROLL_ON_DEMAND)
    check_all_readers(log, truth, fs)  # with the right files, first
    state = log.close()
    for swap in one_in(17, list(swaps(world)), start):
        right = fs.read(swap.path)
        if start == "as it is":
            log, _ = reopen(fs, config=ROLL_ON_DEMAND, clean=state)
        fs.replace(swap.path, swap.raw)
        if start != "as it is":
            clean = state if start == "after a clean stop" else None
            log, _ = reopen(fs, config=ROLL_ON_DEMAND, clean=clean)
        try:
            check_all_readers(log, truth, fs)
        except BaseException as error:
            error.add_note(f"{swap.path.name} is that of {swap.whose}")
            raise
        state = log.close()
        fs.replace(swap.path, right)
    assert fs.exists(DIRECTORY)


@pytest.mark.parametrize("name", ["manifest", "manifest.copy"])
@pytest.mark.parametrize("boot", ["boot-1", "boot-2"])
def test_the_manifest_of_another_stream_costs_nothing(
    world: Neighbours, name: str, boot: str
) -> None:
    """No file is removed because another stream does not list it."""
    fs, truth = world.fs, world.truth
    before = {path.name for path in fs.files() if path.parent == DIRECTORY}
    fs.replace(DIRECTORY / name, fs.read(OTHER / name))
    log, report = reopen(fs, config=ROLL_ON_DEMAND, boot=boot)
    assert any("belongs to another stream" in event for event in report.events)
    check_all_readers(log, truth, fs)
    assert {path.name for path in fs.files() if path.parent == DIRECTORY} >= before
    log.close()
    log, report = reopen(fs, config=ROLL_ON_DEMAND, boot="boot-3")
    assert report.events == []
    check_all_readers(log, truth, fs)


@pytest.mark.parametrize("boot", ["boot-1", "boot-2"])
def test_the_slot_of_another_stream_says_nothing(world: Neighbours, boot: str) -> None:
    fs, truth = world.fs, world.truth
    fs.replace(DIRECTORY / ACKED_END_NAME, fs.read(OTHER / ACKED_END_NAME))
    log, _ = reopen(fs, config=ROLL_ON_DEMAND, boot=boot)
    check_all_readers(log, truth, fs)


def test_states_of_another_stream_say_nothing(world: Neighbours) -> None:
    """Recovery points and the clean marker name the incarnation and the segment."""
    fs, truth = world.fs, world.truth
    other, _ = reopen(fs, config=ROLL_ON_DEMAND, directory=OTHER)
    state = other.close()
    log, report = reopen(fs, config=ROLL_ON_DEMAND, clean=state, recovery_point=state)
    assert not report.clean
    check_all_readers(log, truth, fs)


def test_indexes_of_version_1_are_rebuilt(world: Neighbours) -> None:
    """They name no segment, so the index of a neighbour could not be distinguished from the right
    one."""
    fs, truth = world.fs, world.truth
    for path in fs.files():
        if path.suffix == ".index" and path.parent == DIRECTORY:
            other = fs.read(OTHER / path.name) if fs.exists(OTHER / path.name) else fs.read(path)
            fs.replace(path, as_version_1(other))
    log, _ = reopen(fs, config=ROLL_ON_DEMAND)
    check_all_readers(log, truth, fs)
    log.close()
    assert all(
        fs.read(path)[-16:-12] == b"LLI2"
        for path in fs.files()
        if path.suffix == ".index" and path.parent == DIRECTORY
    )


def as_version_1(raw: bytes) -> bytes:
    entries = raw[:-40]
    head = struct.pack("<4sII", b"LLIX", len(entries) // 16, crc32c(entries))
    return entries + head + struct.pack("<I", crc32c(head))
