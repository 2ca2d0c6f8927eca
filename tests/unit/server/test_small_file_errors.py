"""An error is not damage, of the small files beside a log too: what one says is known, or refused,
or, of a hint, passed over for as long as the error lasts. The file stays as it is.

All of them are tried, in `make test` too.
"""

from __future__ import annotations

import logging

import pytest
from support.disks.file_errors import CHANGES, LOOKS, OTHER_ERRORS, SECTOR_ERRORS, failures
from support.disks.small_files import SMALL_FILES, SmallFile

from liftlog.cluster.store import MetaStoreError
from liftlog.errors import LiftlogError

ERRORS = (*OTHER_ERRORS, *SECTOR_ERRORS)
REFUSALS = (LiftlogError, MetaStoreError, OSError)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "liftlog")


@pytest.mark.parametrize("kind", SMALL_FILES)
def test_an_error_of_a_read(kind: type[SmallFile]) -> None:
    file = kind()
    file.write(1)
    raw, failed = file.fs.read(file.path), 0
    for failure in failures(LOOKS, (file.name,), ERRORS):
        file.fs.faults = [failure.fault(times=-1)]
        try:
            found = file.read()
        except REFUSALS:
            failed += 1
        else:
            is_lost = file.can_be_made_again and failure.error in SECTOR_ERRORS
            assert found == 1 or (found is None and (file.is_hint or is_lost)), str(failure)
            failed += found is None
        file.fs.faults = []
        assert file.fs.read(file.path) == raw, str(failure)
        assert file.read() == 1, str(failure)
    assert failed >= 2 * len(ERRORS), "these errors reach no one"


@pytest.mark.parametrize("kind", SMALL_FILES)
def test_an_error_of_a_write(kind: type[SmallFile]) -> None:
    """The old content or the new one is there, also after a power cut; what was refused can be
    tried again."""
    refused = 0
    for failure in failures(CHANGES, (kind.name,), ERRORS):
        file = kind()
        file.write(1)
        before = file.fs.read(file.path)
        file.fs.faults = [failure.fault(times=-1)]
        try:
            file.write(2)
            possible = set()
        except REFUSALS:
            refused += 1
            possible = {before}
        file.fs.faults = []
        possible.add(file.fs.read(file.path))
        assert file.fs.power_cut("none").read(file.path) in possible, str(failure)
        assert file.read() in ((1, 2) if before in possible else (2,)), str(failure)
        file.write(2)
        assert file.read() == 2, str(failure)
    assert refused >= 3 * len(ERRORS), "these errors reach no one"
