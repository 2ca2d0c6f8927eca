"""The commit of the sources that run, where it can be known."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from liftlog.commit import checked_out
from tools.commit_hook import commit_of


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "--quiet", "-m", "one")
    return tmp_path


def git(place: Path, *arguments: str) -> str:
    who = ["-c", "user.name=n", "-c", "user.email=n@example.org"]
    command = ["git", *who, *arguments]
    return subprocess.run(command, cwd=place, check=True, capture_output=True, text=True).stdout


def head(place: Path) -> str:
    return git(place, "rev-parse", "HEAD")[:12]


def test_a_branch(clone: Path) -> None:
    assert checked_out(clone) == head(clone) == commit_of(clone)


def test_packed_refs(clone: Path) -> None:
    git(clone, "pack-refs", "--all")
    assert not (clone / ".git/refs/heads/main").exists()
    assert checked_out(clone) == head(clone)


def test_a_detached_head(clone: Path) -> None:
    git(clone, "checkout", "--quiet", "--detach")
    assert checked_out(clone) == head(clone)


def test_a_worktree(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("worktree") / "other"
    git(clone, "worktree", "add", "--quiet", "-b", "other", str(other))
    assert checked_out(other) == head(clone) == commit_of(other)


def test_no_repository(tmp_path: Path) -> None:
    assert checked_out(tmp_path) == "" == commit_of(tmp_path)


@pytest.mark.parametrize("wrong", ["", "ref: refs/heads/none", "zzz", "ref: \xff"])
def test_a_damaged_repository(clone: Path, wrong: str) -> None:
    (clone / ".git/HEAD").write_bytes(wrong.encode("latin-1"))
    assert checked_out(clone) == ""


def test_a_build_tells_of_changes(clone: Path) -> None:
    (clone / "file").write_text("two")
    assert commit_of(clone) == f"{head(clone)}-dirty"


def test_sources_without_their_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIFTLOG_COMMIT", "0123456789ab")
    assert commit_of(tmp_path) == "0123456789ab"
    monkeypatch.setenv("LIFTLOG_COMMIT", "$(rm -rf /)")
    assert commit_of(tmp_path) == ""


def test_an_unpacked_sdist(tmp_path: Path) -> None:
    (tmp_path / "liftlog").mkdir()
    (tmp_path / "liftlog/COMMIT").write_text("0123456789ab-dirty\n")
    assert commit_of(tmp_path) == "0123456789ab-dirty"
