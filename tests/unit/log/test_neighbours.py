"""A derived file of a neighbour, with right checksums, misleads no reader and condemns no data.

`make storage-faults` puts the file of every neighbour in every place; `make test` a sample.
"""

from __future__ import annotations

import pytest
from support.logs import DIRECTORY, reopen
from support.neighbours import Neighbours, check_all_readers, neighbours, swaps
from support.rewriting import ROLL_ON_DEMAND
from support.rounds import one_in

from liftlog.log import by_subject
from liftlog.log.rewrite import subject_indexing
from liftlog.server.pull import filtering


@pytest.fixture(autouse=True)
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Subject indexes are worth it in these small segments too."""
    monkeypatch.setattr(subject_indexing, "RUN_BYTES", 4096)
    monkeypatch.setattr(subject_indexing, "MOST_PART", 1)
    monkeypatch.setattr(subject_indexing, "_LEAST_BATCH_BYTES", 0)
    monkeypatch.setattr(subject_indexing, "_LEAST_RECORDS", 0)
    monkeypatch.setattr(by_subject, "SPARSE_VALUE_BYTES", 16)
    monkeypatch.setattr(filtering, "_LEAST_BY_SUBJECT", 0)


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
