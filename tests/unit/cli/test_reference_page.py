"""docs/reference/cli.md says what the commands say."""

import inspect
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from liftlog.cli.root import ALIASES, cli
from tools.pages.commands import commands, render

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == render(), "run: make pages"


def test_the_commands_of_the_contract_are_there() -> None:
    names = {path.removeprefix("liftlog ") for path, _ in commands()}
    assert names >= {
        "serve",
        "demo",
        "stream create",
        "stream ls",
        "stream info",
        "stream rm",
        "pub",
        "consume",
        "log dump",
        "log verify",
        "log repair",
        "log reindex",
    }


@pytest.mark.parametrize(("path", "command"), list(commands()))
def test_every_command_and_option_is_explained(path: str, command: click.Command) -> None:
    assert command.help, path
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{path} {parameter.opts}"
    assert "…" not in command.get_short_help_str(60)
    assert not command.get_short_help_str(60).endswith("..."), path


def test_every_command_has_an_example_of_its_own() -> None:
    shown = {path for path, _ in examples()}
    missing = [
        path
        for path, command in commands()
        if not isinstance(command, click.Group) and path not in shown
    ]
    assert missing == []


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for _, command in commands():
        if not isinstance(command, click.Group):
            monkeypatch.setattr(command, "callback", None)


@pytest.mark.usefixtures("nothing_runs")
def test_the_examples_can_be_typed() -> None:
    """Commands, options, arguments and their values are such as are taken."""
    for path, words in examples():
        cli.main(words, standalone_mode=False)
        call = " ".join(words)
        for alias, command in ALIASES.items():
            if call.startswith(f"{alias} "):
                call = call.replace(alias, command, 1)
        assert f"liftlog {call}".startswith(path), f"{path} shows another command"


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("wrong", ["stream lst", "top --sort lags", "info --sever x", "export a"])
def test_what_cannot_be_typed(wrong: str) -> None:
    with pytest.raises(click.UsageError):
        cli.main(wrong.split(), standalone_mode=False)


def examples() -> Iterator[tuple[str, list[str]]]:
    """The command whose help has it, and what stands behind `liftlog` up to the end of the call."""
    for path, command in commands():
        for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
            if paragraph.startswith("\b\nExample"):
                for call in re.findall(r"\bliftlog (?!liftlog)(\w.*)", paragraph):
                    yield path, shlex.split(re.split(r"  +| [|>] | && ", call)[0])
