"""Errors of each call on the files of an erasure, and wrong files in place of these files: no
erased record is shown, and no other record stays hidden after the error has ended.

`make storage-faults` tests every error of every call, and `make test` a sample of them.
"""

from __future__ import annotations

import logging
from contextlib import suppress

import pytest
from support.disks.file_errors import (
    CHANGES,
    LOOKS,
    OTHER_ERRORS,
    SECTOR_ERRORS,
    Failure,
    failures,
)
from support.disks.logs import BASE_NS, DIRECTORY, create, reopen
from support.disks.simfs import SimFileSystem
from support.rounds import one_in
from support.worlds.rewriting import Rows, add, row, stored

from liftlog.errors import CorruptMetadata, DiskFull, LiftlogError, StorageError
from liftlog.log import Log
from liftlog.log.erased import ErasedSet
from liftlog.log.files.erased_file import is_erased_name
from liftlog.log.files.erasures import ERASURES_NAME, Erasure
from liftlog.server.streams.erasing import erase_listed

KINDS = (".erased", ERASURES_NAME, "manifest", "manifest.copy")
FIRST, SECOND = [(3, 5), (22, 30)], [(10, 11), (41, 47)]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "liftlog")


def _without(rows: Rows, *ranges: tuple[int, int]) -> Rows:
    return {o: r for o, r in rows.items() if not any(a <= o < b for a, b in ranges)}


def _erase(log: Log, ranges: list[tuple[int, int]]) -> None:
    """Erase records as the daemon does: write the list of erasures first."""
    wanted = ErasedSet.of_ranges(ranges)
    chosen = log.structure.select(wanted)
    count = len(chosen.selection.offsets)
    one = Erasure("0123456789abcdef", BASE_NS, "p", "a reason", count, tuple(ranges))
    erase_listed(log, chosen, one)


def _filled(fs: SimFileSystem) -> tuple[Log, Rows]:
    """Create several segments, the first ones with erased records."""
    log = create(fs)
    rows: Rows = {}
    for number in range(12):
        rows |= add(log, [[row(b"k%d" % number, b"%d.%d" % (number, i) * 9) for i in range(5)]])
    _erase(log, FIRST)
    return log, rows


def _shown(log: Log, rows: Rows) -> Rows:
    """Return the records that readers get; no records if they get an error."""
    found: Rows = {}
    for offset in rows:
        with suppress(LiftlogError):
            piece = log.read(offset, 1)
            if piece is not None:
                piece.release()
    with suppress(CorruptMetadata, StorageError):
        found = stored(log)
    return found


_ON_ERASING = failures((*LOOKS, *CHANGES), KINDS, (*OTHER_ERRORS, *SECTOR_ERRORS))


def test_an_error_while_records_are_erased() -> None:
    """Either the erasure fails, or it is durable. A failed erasure has erased all records or
    none."""
    for number, failure in enumerate(one_in(7, _ON_ERASING, "erasing")):
        fs = SimFileSystem()
        log, rows = _filled(fs)
        before = _without(rows, *FIRST)
        after = _without(before, *SECOND)
        fs.faults = [failure.fault(countdown=1 + number % 4, times=(1, 3, -1)[number % 3])]
        try:
            try:
                _erase(log, SECOND)
            except (StorageError, DiskFull):
                assert stored(log) == before, "a failed erasure hides nothing"
                is_erased = False
            else:
                assert stored(log) == after
                is_erased = True
            fs.faults = []
            for image, boot in (
                (fs.power_cut("none"), "boot-2"),
                (fs.power_cut("some", number), "boot-2"),
                (fs.power_cut("all"), "boot-2"),
                (fs.kill(), "boot-1"),
            ):
                again, _ = reopen(image, boot=boot)
                assert stored(again) in ((after,) if is_erased else (before, after))
            # The next attempt succeeds, and its erasure is durable.
            _erase(log, SECOND)
            assert stored(log) == after
            again, _ = reopen(fs.power_cut("none"), boot="boot-2")
            assert stored(again) == after
        except BaseException as error:
            error.add_note(f"{failure}, {fs.faults}")
            raise


_AT_A_START = failures((*LOOKS, *CHANGES), KINDS, (*OTHER_ERRORS, *SECTOR_ERRORS))


@pytest.mark.parametrize("boot", ["boot-1", "boot-2"])
def test_an_error_at_a_start(boot: str) -> None:
    for number, failure in enumerate(one_in(7, _AT_A_START, boot)):
        fs = SimFileSystem()
        log, rows = _filled(fs)
        _erase(log, SECOND)
        left = _without(rows, *FIRST, *SECOND)
        image = fs.kill() if boot == "boot-1" else fs.power_cut("none")
        image.faults = [failure.fault(countdown=1 + number % 3, times=-1)]
        try:
            _try_a_start(image, boot, rows, left)
        except BaseException as error:
            error.add_note(str(failure))
            raise


def _try_a_start(image: SimFileSystem, boot: str, rows: Rows, left: Rows) -> None:
    with suppress(StorageError, DiskFull, CorruptMetadata):
        log, _ = reopen(image, boot=boot)
        found = _shown(log, rows)
        assert found.keys() <= left.keys(), "an erased record was shown"
        _erase_more(log)
    image.faults = []
    again, _ = reopen(image.kill(), boot=boot)
    assert stored(again).keys() <= left.keys(), "an erased record was shown later"
    assert left.keys() - stored(again).keys() <= {60}, "another record is hidden for good"


def _erase_more(log: Log) -> None:
    """Erase records while the error lasts; the new files must not replace the unreadable one."""
    with suppress(LiftlogError):
        _erase(log, [(60, 61)])


@pytest.mark.parametrize("of", ["another stream", "another erasure", "an older state"])
def test_the_erased_file_of_a_neighbour_is_not_believed(of: str) -> None:
    fs = SimFileSystem()
    log, rows = _filled(fs)
    older = {name: fs.read(DIRECTORY / name) for name in _erased_files(fs)}
    _erase(log, SECOND)
    left = _without(rows, *FIRST, *SECOND)
    files = {name: fs.read(DIRECTORY / name) for name in _erased_files(fs)}
    assert len(files) > 1
    if of == "another stream":
        other = SimFileSystem()
        twin, _ = _filled(other)
        twin.structure.erase(ErasedSet.of_ranges([(1, 3), (33, 36)]))
        strangers = [other.read(DIRECTORY / name) for name in _erased_files(other)]
    elif of == "another erasure":
        strangers = list(files.values())
    else:
        strangers = [*older.values(), b"", bytes(8192)]
    for name, right in files.items():
        for wrong in strangers:
            if wrong == right:
                continue
            image = fs.kill()
            image.replace(DIRECTORY / name, wrong)
            again, _ = reopen(image)
            found = _shown(again, rows)
            assert found.keys() <= left.keys(), (name, "an erased record was shown")
            _erase_more(again)
            image.replace(DIRECTORY / name, right)
            put_right, _ = reopen(image.kill())
            assert left.keys() - stored(put_right).keys() <= {60}
            assert stored(put_right).keys() <= left.keys()


def _erased_files(fs: SimFileSystem) -> list[str]:
    return [name for name in fs.list_directory(DIRECTORY) if is_erased_name(name)]


def test_the_failures_are_all_of_them() -> None:
    assert len(_ON_ERASING) == len({str(one) for one in _ON_ERASING}) > 700
    assert Failure("pread", ".erased", SECTOR_ERRORS[0]) in _ON_ERASING
