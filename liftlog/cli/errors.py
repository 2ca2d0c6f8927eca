"""`liftlog errors`: what an error means, by its number or name."""

from __future__ import annotations

from typing import Any

import click

from liftlog.cli.error_table import REFUSAL_CLASSES, ErrorFacts, all_errors, all_refusals
from liftlog.cli.exit_codes import MEANINGS, ExitCode
from liftlog.cli.groups import Commands
from liftlog.cli.options import debug_option, output_format, output_option
from liftlog.cli.output import print_pairs, print_table, write_object, write_objects
from liftlog.cli.problems import Problem
from liftlog.cli.suggestions import closest


@click.group(cls=Commands, name="errors", aliases={"list": "ls", "show": "lookup"})
@output_option
@debug_option
def errors_commands() -> None:
    """Explain errors by number or name."""


@errors_commands.command(name="ls")
@output_option
@debug_option
def list_errors() -> None:
    """List all errors, and the refusals of publishers.

    Refusals have JetStream's err_code, 10003 and above: a publisher gets them instead of an ack.

    \b
    Examples:
      liftlog errors ls
      liftlog errors ls -o jsonl | jq -r 'select(.exit_code == 11).name'
    """
    style, found = output_format(), [*all_errors(), *all_refusals()]
    if style != "table":
        write_objects([one.to_object() for one in found], style)
        return
    rows = [(one.code, one.name, one.exit_code, one.meaning) for one in found]
    print_table(("CODE", "NAME", "EXIT", "MEANING"), rows, right=(0, 2))


def _complete_code(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str]:
    return [
        one.name
        for one in [*all_errors(), *all_refusals()]
        if one.name.upper().startswith(incomplete.upper())
    ]


@errors_commands.command()
@click.argument("code", shell_complete=_complete_code)
@output_option
@debug_option
def lookup(code: str) -> ExitCode:
    """Explain CODE: what it means and what to do.

    CODE is the number or name of an error, a JetStream err_code as in a refused ack, or exit:N for
    the exit code N.

    \b
    Examples:
      liftlog errors lookup 13
      liftlog errors lookup OFFSET_OUT_OF_RANGE
      liftlog errors lookup 10071
      liftlog errors lookup exit:8
    """
    style, word = output_format(), code.strip()
    if word.startswith("exit:"):
        return _tell_exit_code(word.removeprefix("exit:"), style)
    known = [*all_errors(), *all_refusals()]
    found = [one for one in known if word.upper().replace("-", "_") in (one.code, one.name.upper())]
    if not found:
        close = closest(word, [one.name for one in known])
        guess = f"did you mean {close}? " if close else ""
        if word in REFUSAL_CLASSES:
            guess = f"{word} is shared by several refusals; look up the err_code beside it. "
        raise Problem(
            f"there is no error {word!r}",
            ExitCode.NOT_FOUND,
            hint=f"{guess}`liftlog errors ls` lists them",
        )
    if style == "table":
        for number, one in enumerate(found):
            if number:
                click.echo()
            print_pairs(_facts(one))
    else:
        write_objects([one.to_object() for one in found], style)
    return ExitCode.OK


def _facts(found: ErrorFacts) -> list[tuple[str, str]]:
    facts = [
        ("name", found.name),
        ("code", found.code),
        ("class", found.class_name),
        ("exit code", found.exit_code),
        ("retriable", "yes" if found.retriable else "no"),
        ("meaning", found.meaning),
        ("what to do", found.advice),
    ]
    return [(label, text) for label, text in facts if text]


def _tell_exit_code(text: str, style: str) -> ExitCode:
    meanings: dict[str, Any] = {str(code.value): meaning for code, meaning in MEANINGS.items()}
    if text not in meanings:
        raise Problem(
            f"no command ends with exit code {text!r}",
            ExitCode.NOT_FOUND,
            hint=f"there are {', '.join(meanings)}",
        )
    if style == "table":
        print_pairs([("exit code", text), ("meaning", meanings[text])])
    else:
        write_object({"exit_code": int(text), "meaning": meanings[text]}, style)
    return ExitCode.OK
