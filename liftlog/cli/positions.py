"""Where to start reading, as it is written on the command line."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeAlias

import click

Position: TypeAlias = int | Literal["earliest", "latest"] | datetime

HELP = (
    "earliest, latest (only what comes from now on), an offset, or @TIME: @2026-01-31, "
    "@2026-01-31T12:00:00Z, @-5m (ago), @now, @1767225600 (seconds since 1970)"
)

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_AGO_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_AGO = re.compile(r"-(?:\d+(?:\.\d+)?(?:ms|s|m|h|d|w))+")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
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
    if word == "earliest":
        return "earliest"
    if word == "latest":
        return "latest"
    if word.startswith("@"):
        return _parse_time(word[1:], now)
    if word.isascii() and word.isdigit():
        offset = int(word)
        if offset > _MAX_OFFSET:
            raise ValueError(f"{word} is larger than any offset")
        return offset
    raise ValueError(f"{text!r} is not a position: use {HELP}")


def _parse_time(text: str, now: datetime) -> datetime:
    if text == "now":
        return now
    try:
        if _AGO.fullmatch(text):
            parts = _AGO_PART.findall(text)
            return now - timedelta(seconds=sum(float(n) * _UNITS[unit] for n, unit in parts))
        if _NUMBER.fullmatch(text):
            return _from_epoch(float(text))
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"@{text} lies outside the years 1 to 9999") from None
    except ValueError as error:
        if "milliseconds" in str(error):
            raise
        raise ValueError(f"@{text} is not a time: use {HELP}") from None


def _from_epoch(seconds: float) -> datetime:
    if seconds > _YEAR_5000:
        raise ValueError(f"@{seconds:.0f} looks like milliseconds or nanoseconds: use seconds")
    return datetime.fromtimestamp(seconds, UTC)
