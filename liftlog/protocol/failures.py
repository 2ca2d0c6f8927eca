"""Exceptions <-> error answers."""

from __future__ import annotations

from typing import Any

from liftlog.errors import WIRE_ERRORS, CorruptRange, InternalError, LiftlogError
from liftlog.protocol.limits import MAX_ERROR_TEXT_CHARS
from liftlog.protocol.messages import ErrorAnswer

_MAX_DETAIL_ENTRIES = 256


def answer_for(error: LiftlogError) -> ErrorAnswer:
    """The answer that carries `error`. Errors without a wire code become INTERNAL."""
    if not error.code:
        return answer_for(InternalError("the daemon failed to answer this request"))
    return ErrorAnswer(
        code=error.code,
        name=error.name,
        message=error.message[:MAX_ERROR_TEXT_CHARS],
        retriable=error.retriable,
        hint=error.hint[:MAX_ERROR_TEXT_CHARS],
        details={str(key): _plain(value, 4) for key, value in error.details.items()},
    )


def exception_from(answer: ErrorAnswer) -> LiftlogError:
    """The typed exception for an error answer; plain LiftlogError for codes of the future."""
    cls = WIRE_ERRORS.get(answer.code)
    details = {name: value for name, value in answer.details.items() if name not in _RESERVED}
    error: LiftlogError
    if cls is CorruptRange:
        bounds = (details.pop("first_offset", 0), details.pop("next_offset", 0))
        first, after = (value if type(value) is int else 0 for value in bounds)
        error = CorruptRange(
            answer.message, hint=answer.hint, first_offset=first, next_offset=after, **details
        )
    elif cls is None:
        text = f"{answer.message} (error {answer.code} {answer.name})"
        error = LiftlogError(text, hint=answer.hint, **details)
    else:
        error = cls(answer.message, hint=answer.hint, **details)
    return error


_RESERVED = frozenset({"self", "message", "hint"})


def _plain(value: Any, depth: int) -> Any:
    """Only what msgpack carries, and not much of it."""
    if value is None or isinstance(value, bool | int | float):
        return value if not isinstance(value, int) or -(2**63) <= value < 2**64 else str(value)
    if isinstance(value, str):
        return value[:MAX_ERROR_TEXT_CHARS]
    if depth and isinstance(value, dict):
        pairs = list(value.items())[:_MAX_DETAIL_ENTRIES]
        return {str(key): _plain(one, depth - 1) for key, one in pairs}
    if depth and isinstance(value, list | tuple):
        return [_plain(one, depth - 1) for one in value[:_MAX_DETAIL_ENTRIES]]
    return str(value)[:MAX_ERROR_TEXT_CHARS]
