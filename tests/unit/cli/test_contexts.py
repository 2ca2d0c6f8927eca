"""Contexts: which address and login count, and the file that keeps them."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from liftlog.cli.lib.contexts import Contexts, file_of, read_contexts, write_contexts
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.options import context_value, server_options, shared_value
from liftlog.cli.root import Root, cli
from liftlog.errors import ConfigError


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str | None]:
    unset = dict.fromkeys(
        ("LIFTLOG_SERVER", "LIFTLOG_TOKEN", "LIFTLOG_CONTEXT", "LIFTLOG_OUTPUT", "LIFTLOG_NKEY")
    )
    return {**unset, "XDG_CONFIG_HOME": str(tmp_path)}


def run(environ: dict[str, Any], *words: str) -> Result:
    return CliRunner(env=environ).invoke(cli, words)


def counts(environ: dict[str, Any], *words: str, **more: str) -> tuple[str | None, ...]:
    """Address, token and NATS server of a command with these options and variables."""
    found: list[str | None] = []

    @server_options
    def body() -> None:
        found.append(shared_value("server", "LIFTLOG_SERVER"))
        found.append(shared_value("token", "LIFTLOG_TOKEN"))
        found.append(context_value("nats"))

    root = Root(name="liftlog")
    root.add_command(click.command("act")(body))
    result = CliRunner(env=environ | more).invoke(root, ["act", *words])
    assert result.exit_code == 0, result.output
    return tuple(found)


@pytest.fixture
def two(environ: dict[str, str | None]) -> dict[str, str | None]:
    """`a`, which is chosen, and `b`."""
    for name in "ab":
        more = ["--token", f"{name}.secret", "--nats", f"nats://u:secret@{name}:4222"]
        added = run(environ, "context", "add", name, "--server", f"{name}:1", *more)
        assert added.exit_code == 0, added.output
    return environ


A = ("tcp://a:1", "a.secret", "nats://u:secret@a:4222")
B = ("tcp://b:1", "b.secret", "nats://u:secret@b:4222")


def test_which_context_counts(two: dict[str, str | None]) -> None:
    assert counts(two) == A
    assert counts(two, "--context", "b") == B
    assert counts(two, LIFTLOG_CONTEXT="b") == B
    assert counts(two, "--context", "a", LIFTLOG_CONTEXT="b") == A
    assert run(two, "context", "use", "b").exit_code == 0
    assert counts(two) == B


def test_a_login_goes_to_no_other_server(two: dict[str, str | None]) -> None:
    assert counts(two, "--server", "x") == ("x", None, None)
    assert counts(two, LIFTLOG_SERVER="x") == ("x", None, None)
    assert counts(two, LIFTLOG_SERVER="x", LIFTLOG_CONTEXT="b") == ("x", None, None)
    assert counts(two, "--context", "b", LIFTLOG_SERVER="x") == B
    assert counts(two, "--context", "b", "--server", "x") == ("x", *B[1:])
    assert counts(two, LIFTLOG_TOKEN="t")[1] == "a.secret"
    assert counts(two, "--token", "t")[1] == "t"


def test_a_context_that_is_not_there(two: dict[str, str | None]) -> None:
    for words in (["--context", "c", "stream", "ls"], ["context", "use", "c"],
                  ["context", "rm", "c"], ["context", "info", "c"]):  # fmt: skip
        result = run(two, *words)
        assert result.exit_code == ExitCode.USAGE
        assert "there is no context 'c'" in result.stderr
        assert "a, b" in result.stderr


def test_contexts_are_listed_without_secrets(two: dict[str, str | None]) -> None:
    for words in (["ls"], ["ls", "-o", "json"], ["info"], ["info", "b", "-o", "yaml"]):
        result = run(two, "context", *words)
        assert result.exit_code == 0
        assert "secret" not in result.output
    assert run(two, "context", "ls", "-q").stdout == "a\nb\n"
    current = [one["current"] for one in json.loads(run(two, "ctx", "ls", "-o", "json").stdout)]
    assert current == [True, False]


def test_a_context_is_replaced_and_removed(two: dict[str, str | None]) -> None:
    assert run(two, "context", "add", "b", "--server", "/run/l.sock", "--use").exit_code == 0
    assert counts(two) == ("unix:///run/l.sock", None, None)
    assert run(two, "context", "rm", "b").exit_code == 0
    assert counts(two) == (None, None, None)
    assert run(two, "context", "ls", "-q").stdout == "a\n"


@pytest.mark.parametrize("server", ["a:1:2", "http://a:8292", "a:99999", "a:9292,b:x"])
def test_a_context_keeps_no_address_that_cannot_be_one(
    server: str, environ: dict[str, str | None]
) -> None:
    found = run(environ, "context", "add", "a", "--server", server)
    assert found.exit_code == ExitCode.USAGE
    assert "is not the address of a liftlog daemon" in found.stderr
    assert run(environ, "context", "ls", "-q").stdout == ""


@pytest.mark.parametrize("name", ["", "a b", "../x", "-"])
def test_names_of_contexts(name: str, environ: dict[str, str | None]) -> None:
    assert run(environ, "context", "add", "--", name).exit_code == ExitCode.USAGE


def test_only_the_owner_can_read_the_file(two: dict[str, str | None]) -> None:
    file = file_of({name: value for name, value in two.items() if value})
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [one.name for one in file.parent.iterdir()] == ["contexts.json"]


def test_a_write_that_fails_keeps_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "contexts.json"
    before = Contexts({"a": {"server": "x"}}, "a")
    write_contexts(file, before)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError):
        write_contexts(file, Contexts({}))
    assert read_contexts(file) == before
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"contexts": []}',
        b'{"contexts": {"a": "b"}}',
        b'{"contexts": {"a": {"server": 1}}}',
        b'{"contexts": {"a": {}}}',
        b'{"contexts": {"a": {"server": "x", "other": "y"}}}',
        b'{"contexts": {}, "current": "a"}',
        b"[" * 100_000,
    ],
)
def test_a_file_that_holds_something_else(
    content: bytes, environ: dict[str, str | None], tmp_path: Path
) -> None:
    file = tmp_path / "liftlog" / "contexts.json"
    file.parent.mkdir()
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="does not hold contexts"):
        read_contexts(file)
    assert run(environ, "stream", "ls").exit_code == ExitCode.CONFIG
    assert run(environ, "--server", "127.0.0.1:1", "stream", "ls").exit_code == 4


def test_no_file_and_no_home_are_no_contexts(tmp_path: Path) -> None:
    assert read_contexts(tmp_path / "none" / "contexts.json") == Contexts({})
    (tmp_path / "file").write_text("")
    assert read_contexts(tmp_path / "file" / "contexts.json") == Contexts({})
