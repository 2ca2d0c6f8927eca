"""Tails that recovery cut off are kept, up to a limit."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.disks.logs import DIRECTORY, Promises, check, commit, create, reopen
from support.disks.simfs import SimFileSystem

from liftlog.log import LogConfig
from liftlog.log.recovery import inventory as inventory_module

BIG = LogConfig(segment_max_bytes=1 << 20, segment_max_age_ns=None)


def _kept(fs: SimFileSystem) -> list[str]:
    return [name for name in fs.list_directory(DIRECTORY) if name.endswith(".broken")]


def _tear(fs: SimFileSystem, path: Path, size: int, tail: bytes) -> None:
    fs.replace(path, fs.read(path)[:size] + tail)


def test_the_newest_tails_are_kept() -> None:
    fs, promises = SimFileSystem(), Promises()
    log = create(fs, config=BIG)
    seen = []
    for i in range(12):
        commit(log, promises, 2)
        active = log.segments[-1]
        fs = fs.kill()
        _tear(fs, active.path, active.size_bytes, b"torn %d" % i)
        log, report = reopen(fs, config=BIG)
        assert report.cut_bytes
        seen += [name for name in _kept(fs) if name not in seen]
        check(log, promises)
    assert len(seen) == 12
    reopen(fs, config=BIG)
    assert set(_kept(fs)) == set(seen[-8:])
    assert fs.read(DIRECTORY / seen[-1]).startswith(b"torn 11")


def test_a_tail_goes_with_its_segment() -> None:
    fs, promises = SimFileSystem(), Promises()
    log = create(fs, config=BIG)
    commit(log, promises, 2)
    fs = fs.kill()
    _tear(fs, log.segments[0].path, log.segments[0].size_bytes, b"torn")
    log, _ = reopen(fs, config=BIG)
    log.writer.roll()
    commit(log, promises, 2)
    reopen(fs.kill(), config=BIG)
    assert len(_kept(fs)) == 1
    log.structure.remove_before(3, 1)
    reopen(fs.kill(), config=BIG)
    assert not _kept(fs)


def test_files_of_somebody_else_are_let_be() -> None:
    fs, promises = SimFileSystem(), Promises()
    log = create(fs, config=BIG)
    commit(log, promises, 2)
    strangers = ["manifest.broken", ".broken", "1.2.broken"]
    for name in strangers:
        fs.open(DIRECTORY / name, create=True).close()
    log, _ = reopen(fs.kill(), config=BIG)
    check(log, promises)
    assert _kept(fs) == sorted(strangers)


def test_of_a_long_tail_the_beginning_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory_module, "_MAX_TAIL_BYTES", 10)
    fs, promises = SimFileSystem(), Promises()
    log = create(fs, config=BIG)
    commit(log, promises, 2)
    fs = fs.kill()
    _tear(fs, log.segments[0].path, log.segments[0].size_bytes, b"0123456789abcdef")
    _, report = reopen(fs, config=BIG)
    assert report.cut_bytes == 16
    assert "10 of them are kept" in report.events[-1]
    assert [fs.read(DIRECTORY / name) for name in _kept(fs)] == [b"0123456789"]
