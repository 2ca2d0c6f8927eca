"""All errors and refusals as rows, made from the classes and tables that define them."""

from __future__ import annotations

import inspect
from dataclasses import asdict, dataclass
from typing import Any

from liftlog import errors
from liftlog.cli.exit_codes import ExitCode, exit_code_of_kind
from liftlog.errors import LiftlogError
from liftlog.stream import refusals
from liftlog.stream.refusals import Refusal


@dataclass(frozen=True, slots=True)
class ErrorFacts:
    """`code` is the number as text, or empty; so is `exit_code`."""

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
    """Those with a number first, by number."""
    wire = [errors.WIRE_ERRORS[code] for code in sorted(errors.WIRE_ERRORS)]
    return [_facts(kind) for kind in [*wire, *local_errors()]]


def local_errors() -> list[type[LiftlogError]]:
    """The errors of `liftlog.errors` without a number, by name."""
    found = [
        item
        for _, item in inspect.getmembers(errors, inspect.isclass)
        if issubclass(item, LiftlogError) and item is not LiftlogError and not item.code
    ]
    return sorted(found, key=lambda kind: kind.name)


def told(kind: type[LiftlogError]) -> tuple[str, str]:
    """What an error means and what to do about it: the two paragraphs of its docstring."""
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


REFUSAL_CLASSES = ("400", "412", "429", "500", "503")  # `code` of a refusal, beside its err_code


def all_refusals() -> list[ErrorFacts]:
    """What a publisher can be answered on NATS instead of an ack, by err_code."""
    found = {one for one in vars(refusals).values() if isinstance(one, Refusal)}
    found |= set(refusals.UNSUPPORTED_HEADERS.values())
    found |= {one for _, one in refusals.UNSUPPORTED_FAMILIES}
    found |= {refusals.wrong_last_sequence(0), refusals.wrong_last_message_id(b"")}
    return [_refusal(one) for one in sorted(found, key=lambda one: (one.err_code, one.reason))]


def _refusal(refusal: Refusal) -> ErrorFacts:
    return ErrorFacts(
        code=str(refusal.err_code),
        name=refusal.reason,
        class_name="",
        exit_code=str(ExitCode.NOT_ACKED.value),
        retriable=refusal.code in (429, 503),
        meaning=f"The message was not stored: {refusal.description.rstrip(': 0')}.",
        advice="docs/how-to/acks.md says what each refusal asks of a publisher.",
    )
