"""`liftlog errors`: explains an error by its number or name. The explanations come from the classes
and tables that define errors and refusals."""

from __future__ import annotations

import inspect
from dataclasses import asdict, dataclass
from typing import Any

import click

from liftlog import errors
from liftlog.cli.lib.command_groups import Commands
from liftlog.cli.lib.exit_codes import MEANINGS, ExitCode, exit_code_of_kind
from liftlog.cli.lib.options import debug_option, output_format, output_option
from liftlog.cli.lib.output import print_pairs, print_table, write_object, write_objects
from liftlog.cli.lib.problems import Problem
from liftlog.cli.lib.suggestions import closest
from liftlog.errors import LiftlogError
from liftlog.sequencing import refusals
from liftlog.sequencing.refusals import RefusalReason


@dataclass(frozen=True, slots=True)
class ErrorFacts:
    """The description of an error. `code` and `exit_code` are numbers as text, or empty."""

    code: str
    name: str
    class_name: str
    exit_code: str
    retriable: bool
    meaning: str
    advice: str

    def to_object(self) -> dict[str, Any]:
        numbers = {
            name: int(text) if text else None
            for name, text in (("code", self.code), ("exit_code", self.exit_code))
        }
        return asdict(self) | numbers


def all_errors() -> list[ErrorFacts]:
    """Return all errors. Errors with a number come first, in the order of the numbers."""
    wire = [errors.WIRE_ERRORS[code] for code in sorted(errors.WIRE_ERRORS)]
    return [_facts(kind) for kind in [*wire, *local_errors()]]


def local_errors() -> list[type[LiftlogError]]:
    """Return the errors of `liftlog.errors` without a number, by name."""
    found = [
        item
        for _, item in inspect.getmembers(errors, inspect.isclass)
        if issubclass(item, LiftlogError) and item is not LiftlogError and not item.code
    ]
    return sorted(found, key=lambda kind: kind.name)


def told(kind: type[LiftlogError]) -> tuple[str, str]:
    """Return meaning and remedy of an error: the two paragraphs of its docstring."""
    paragraphs = inspect.cleandoc(vars(kind)["__doc__"] or "").split("\n\n")
    meaning, advice = (" ".join(paragraph.split()) for paragraph in paragraphs)
    return meaning, advice


def _facts(kind: type[LiftlogError]) -> ErrorFacts:
    meaning, advice = told(kind)
    return ErrorFacts(
        str(kind.code) if kind.code else "",
        kind.name,
        kind.__name__,
        str(exit_code_of_kind(kind).value),
        kind.retriable,
        meaning,
        advice,
    )


REFUSAL_CLASSES = (
    "400",
    "412",
    "429",
    "500",
    "503",
)  # keys are the `code` of refusals; several err_codes share one


def all_refusals() -> list[ErrorFacts]:
    """Return the refusals that a publisher can get on NATS instead of an ack, by err_code."""
    found = {one for one in vars(refusals).values() if isinstance(one, RefusalReason)}
    found |= set(refusals.UNSUPPORTED_HEADERS.values())
    found |= {one for _, one in refusals.UNSUPPORTED_FAMILIES}
    found |= {refusals.wrong_last_sequence(0), refusals.wrong_last_message_id(b"")}
    order = sorted(found, key=lambda one: (one.err_code, one.reason, one.description))
    return [_refusal(one) for one in order]


def _refusal(refusal: RefusalReason) -> ErrorFacts:
    return ErrorFacts(
        code=str(refusal.err_code),
        name=refusal.reason,
        class_name="",
        exit_code=str(ExitCode.NOT_ACKED.value),
        retriable=refusal.code in (429, 503),
        meaning=f"The message was not stored: {refusal.description.rstrip(': 0')}.",
        advice="`liftlog docs how-to/acks` says how a publisher handles each refusal.",
    )


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

    A publisher receives a refusal instead of an ack. Refusals have JetStream's err_code, 10003 and
    above.

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
    """Explain the meaning of CODE, and the next step.

    CODE is the number or name of an error, its class in Python, the JetStream err_code of a
    refusal, or exit:N for the exit code N.

    \b
    Examples:
      liftlog errors lookup 13
      liftlog errors lookup OFFSET_OUT_OF_RANGE
      liftlog errors lookup OffsetOutOfRange
      liftlog errors lookup 10071
      liftlog errors lookup exit:8
    """
    style, word = output_format(), code.strip()
    if word.startswith("exit:"):
        return _tell_exit_code(word.removeprefix("exit:"), style)
    known = [*all_errors(), *all_refusals()]
    asked = word.upper().replace("-", "_")
    found = [one for one in known if asked in (one.code, one.name.upper(), one.class_name.upper())]
    if not found:
        names = [text for one in known for text in (one.name, one.class_name) if text]
        close = closest(word, names)
        guess = f"did you mean {close}? " if close else ""
        if word in REFUSAL_CLASSES:
            guess = f"{word} is shared by several refusals; look up the err_code next to it. "
        raise Problem(
            f"there is no error {word!r}",
            ExitCode.NOT_FOUND,
            hint=f"{guess}`liftlog errors ls` lists them",
        )
    if style == "table":
        for number, one in enumerate(found):
            if number:
                click.echo()
            print_pairs(_pairs(one))
    else:
        write_objects([one.to_object() for one in found], style)
    return ExitCode.OK


def _pairs(found: ErrorFacts) -> list[tuple[str, str]]:
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
