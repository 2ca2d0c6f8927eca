"""Where to start reading, as typed on the command line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeAlias

import click


@dataclass(frozen=True, slots=True)
class Relative:
    """A number of offsets before the end, or after the start, of what the stream holds."""

    count: int
    from_end: bool


class NotUnderstood(ValueError):
    """The text is not a position. A caller that accepts more has a better message."""


Position: TypeAlias = int | Literal["earliest", "latest"] | datetime | Relative

HELP = (
    "start (or earliest), end (or latest: only what comes from now on), an offset, -100 (the last "
    "100), +100 (after the first 100), or @TIME: @2026-01-31, @2026-01-31T12:00:00Z, @-5m (ago), "
    "@now, @1767225600 (seconds since 1970)"
)

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SPAN_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)", re.ASCII)
_SPAN = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d|w))+", re.ASCII)
_AGO = re.compile(f"-{_SPAN.pattern}", re.ASCII)
_NUMBER = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_MAX_DIGITS = 19  # int() of very many is refused with words of its own
_MAX_OFFSET = 2**63 - 1
_YEAR_5000 = 95_617_584_000


def position_of(context: click.Context, parameter: click.Parameter, value: str) -> Position:
    """Callback of an option or argument."""
    try:
        return parse_position(value, datetime.now(UTC))
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None


def parse_position(text: str, now: datetime) -> Position:
    """Raises ValueError that says what is accepted. A time without a zone is local time."""
    word = text.strip()
    if word in ("earliest", "start"):
        return "earliest"
    if word in ("latest", "end"):
        return "latest"
    if word.startswith("@"):
        return parse_time(word[1:], now)
    sign, digits = (word[0], word[1:]) if word[:1] in ("-", "+") else ("", word)
    if digits.isascii() and digits.isdigit():
        if len(digits) > _MAX_DIGITS or int(digits) > _MAX_OFFSET:
            raise ValueError(f"{word} is larger than any offset")
        return Relative(int(digits), sign == "-") if sign else int(digits)
    raise NotUnderstood(f"{text!r} is not a position: use {HELP}")


def parse_time(text: str, now: datetime) -> datetime:
    """The part after the @. Raises ValueError that says what is accepted."""
    if text == "now":
        return now
    try:
        if _AGO.fullmatch(text):
            return now - parse_span(text[1:])
        if _NUMBER.fullmatch(text):
            return _from_epoch(float(text))
        return _from_iso(text)
    except OverflowError:
        raise ValueError(f"@{text} lies outside the years 1 to 9999") from None


def parse_span(text: str) -> timedelta:
    """`1h30m`. Raises ValueError if it is not a duration, OverflowError."""
    if not _SPAN.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration such as 1h30m")
    parts = _SPAN_PART.findall(text)
    return timedelta(seconds=sum(float(n) * _UNITS[unit] for n, unit in parts))


def _from_epoch(seconds: float) -> datetime:
    if seconds > _YEAR_5000:
        raise ValueError(f"@{seconds:.0f} looks like milliseconds or nanoseconds: use seconds")
    return datetime.fromtimestamp(seconds, UTC)


def _from_iso(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise NotUnderstood(f"@{text} is not a time: use {HELP}") from None
    try:
        return moment.astimezone(UTC)
    except ValueError as error:  # of a time in the first or last hours, here
        raise OverflowError(str(error)) from None
