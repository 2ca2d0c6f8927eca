"""docs/reference/cli.md says what the commands say."""

from pathlib import Path

import click
import pytest

from liftlog.cli.reference import commands, render

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == render(), (
        "run: python -m liftlog.cli.reference > docs/reference/cli.md"
    )


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
