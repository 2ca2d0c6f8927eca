"""Ranges of a stream, as typed on the command line: rpk's grammar of offsets.

start   end   42   -100   +100   5m   @TIME     from this position on
10:20   :20   -100:end   @-1h:-5m   @T:+10m     and up to there, exclusive

Numbers can have the separators that tables show: 1,234:5,678
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import click

from liftlog.errors import InvalidArgument

if TYPE_CHECKING:
    from liftlog.client import SyncClient
    from liftlog.client.reading.read_options import Start, Until

HELP = (
    "start, end, an offset, -100 (the last 100), +100 (after the first 100), 5m or 1h30m (ago), "
    "@TIME (@2026-01-31, @2026-01-31T12:00:00Z, @-5m, @now, @yesterday, @1767225600), or with "
    "an exclusive end 10:20, :20, -100:end, @-1h:-5m, @2026-01-31:+1d"
)


@dataclass(frozen=True, slots=True)
class Relative:
    """A position as a number of offsets after the start, or before the end, of the stream's
    records."""

    count: int
    from_end: bool


class NotUnderstood(ValueError):
    """The text is not a position. A caller that accepts other texts replaces the message."""


Position: TypeAlias = int | Literal["earliest", "latest"] | datetime | Relative

POSITION_HELP = (
    "start (or earliest), end (or latest: only later records), an offset, -100 (the last "
    "100), +100 (after the first 100), 5m or 1h30m (ago), or @TIME: @2026-01-31, "
    "@2026-01-31T12:00:00Z, @-5m, @now, @yesterday, @yesterdayT12:00, @today, @1767225600 (seconds "
    "since 1970)"
)

_DAYS = {"today": 0, "yesterday": 1}
_TIME_WITHOUT_AT = re.compile(r"now$|(?:today|yesterday)(?![a-z])|\d{4}-\d\d-\d\d", re.ASCII)
"""The beginnings of texts that can only be times. For such texts the @ may be left out."""
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SPAN_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)", re.ASCII)
_SPAN = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d|w))+", re.ASCII)
_AGO = re.compile(f"-{_SPAN.pattern}", re.ASCII)
_NUMBER = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_SEPARATED = re.compile(r"\d{1,3}(?:,\d{3})+", re.ASCII)
_MAX_DIGITS = 19  # int() rejects very long numbers with its own message
MAX_OFFSET = 2**63 - 1
_YEAR_5000 = 95_617_584_000


def plain_number(text: str) -> str:
    """Remove the separators that tables have in numbers: `1,234` becomes 1234. Other text stays
    unchanged."""
    return text.replace(",", "") if _SEPARATED.fullmatch(text) else text


class OffsetType(click.IntRange):
    """An offset as an option, plain or in the form that a table shows."""

    def __init__(self) -> None:
        super().__init__(min=0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        plain: Any = plain_number(value) if isinstance(value, str) else value
        return super().convert(plain, param, ctx)


def position_of(context: click.Context, parameter: click.Parameter, value: str) -> Position:
    """Parse a position (callback of an option or argument)."""
    try:
        return parse_position(value, datetime.now(UTC))
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None


def time_of(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> datetime | None:
    """Parse a time (callback of an option)."""
    try:
        return None if value is None else _only_time(value, datetime.now(UTC))
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None


TIME_HELP = (
    "5m or 1h30m (ago), or a time: 2026-01-31, 2026-01-31T12:00:00Z, yesterday, or @1767225600 "
    "(seconds since 1970)"
)


def _only_time(text: str, now: datetime) -> datetime:
    try:
        found = parse_position(text, now)
    except NotUnderstood:
        found = None
    if not isinstance(found, datetime):
        raise ValueError(f"{text!r} is not a time: use {TIME_HELP}")
    return found


def parse_position(text: str, now: datetime) -> Position:
    """Parse a position. A time without a zone is local time. Raises ValueError, which lists the
    accepted forms."""
    word = text.strip()
    if word in ("earliest", "start"):
        return "earliest"
    if word in ("latest", "end"):
        return "latest"
    if word.startswith("@") or _TIME_WITHOUT_AT.match(word):
        return parse_time(word.removeprefix("@"), now)
    sign, digits = (word[0], word[1:]) if word[:1] in ("-", "+") else ("", word)
    digits = plain_number(digits)
    if digits.isascii() and digits.isdigit():
        if len(digits) > _MAX_DIGITS or int(digits) > MAX_OFFSET:
            raise ValueError(f"{word} is larger than any offset")
        return Relative(int(digits), sign == "-") if sign else int(digits)
    if _SPAN.fullmatch(word):  # as in the fields of the web page
        return parse_time(f"-{word}", now)
    raise NotUnderstood(f"{text!r} is not a position: use {POSITION_HELP}")


def parse_time(text: str, now: datetime) -> datetime:
    """Parse the part after the @. Raises ValueError, which lists the accepted forms."""
    if text == "now":
        return now
    try:
        if _AGO.fullmatch(text):
            return now - parse_span(text[1:])
        if _NUMBER.fullmatch(text):
            return _from_epoch(float(text))
        return _from_iso(text, now)
    except OverflowError:
        raise ValueError(f"@{text} lies outside the years 1 to 9999") from None


def parse_span(text: str) -> timedelta:
    """Parse a duration such as `1h30m`. Raises ValueError if it is not a duration,
    OverflowError."""
    if not _SPAN.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration such as 1h30m")
    parts = _SPAN_PART.findall(text)
    return timedelta(seconds=sum(float(n) * _UNITS[unit] for n, unit in parts))


def _from_epoch(seconds: float) -> datetime:
    if seconds > _YEAR_5000:
        raise ValueError(f"@{seconds:.0f} looks like milliseconds or nanoseconds: use seconds")
    return datetime.fromtimestamp(seconds, UTC)


def _dated(text: str, now: datetime) -> str:
    """Replace `today` or `yesterday` by the date."""
    for word, days in _DAYS.items():
        if text.startswith(word):
            date = now.astimezone().date() - timedelta(days=days)
            return f"{date}{text.removeprefix(word)}"
    return text


def _from_iso(text: str, now: datetime) -> datetime:
    try:
        moment = datetime.fromisoformat(_dated(text, now))
    except ValueError:
        raise NotUnderstood(f"@{text} is not a time: use {POSITION_HELP}") from None
    try:
        return moment.astimezone(UTC)
    except ValueError as error:  # a first or last hour of the range, in this zone
        raise OverflowError(str(error)) from None


@dataclass(frozen=True, slots=True)
class Range:
    """The range [start, stop). A `stop` of None never stops; "latest" stops at the current end."""

    start: Position
    stop: Position | None = None


Bounds: TypeAlias = "tuple[Start, Until]"


def range_of(context: click.Context, parameter: click.Parameter, value: str) -> Range:
    """Parse a range (callback of an option)."""
    try:
        return parse_range(value, datetime.now(UTC))
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None


def parse_range(text: str, now: datetime) -> Range:
    """Parse a range. Raises ValueError, which lists the accepted forms."""
    word = text.strip()
    if ":" not in word:
        return Range(_position(word, now))
    if word.startswith("@") or _TIME_WITHOUT_AT.match(word):
        return _time_range(word.removeprefix("@"), now)
    first, _, second = word.partition(":")
    start = _position(first, now) if first else "earliest"
    if not second:
        return Range(start)
    stop = _position(second, now)
    if stop == "earliest":
        raise ValueError(f"{text!r}: a stream has nothing before its start")
    if isinstance(start, int) and isinstance(stop, int) and stop <= start:
        raise ValueError(f"{text!r}: the end is exclusive and must be after the start")
    return Range(start, stop)


def _position(word: str, now: datetime) -> Position:
    try:
        return parse_position(word, now)
    except NotUnderstood:
        raise ValueError(f"{word!r} is not a valid range: use {HELP}") from None


def _time_range(text: str, now: datetime) -> Range:
    """Parse a range of times. Times contain colons, so the separator is a colon with a valid time
    on both sides.

    A text that can be one time is read as one time. Otherwise the last colon that makes both sides
    valid is the separator.
    """
    try:
        return Range(parse_time(text, now))
    except ValueError as error:
        problem = error
    for at in reversed([at for at, character in enumerate(text) if character == ":"]):
        try:
            start = parse_time(text[:at], now)
        except ValueError:
            continue
        if not text[at + 1 :]:
            return Range(start)
        stop = _stop_of(text[at + 1 :], start, now)
        if stop is not None:
            return _checked(Range(start, stop), text, now)
    if isinstance(problem, NotUnderstood):
        raise ValueError(f"'@{text}' is not a valid range: use {HELP}")
    raise problem


def _stop_of(text: str, start: datetime, now: datetime) -> Position | None:
    if text in ("end", "latest"):
        return "latest"
    try:
        if text.startswith("+"):
            return start + parse_span(text[1:])
        return parse_time(text.removeprefix("@"), now)
    except (ValueError, OverflowError):
        return None


def _checked(found: Range, text: str, now: datetime) -> Range:
    start, stop = found.start, found.stop
    if isinstance(start, datetime) and isinstance(stop, datetime):
        if stop <= start:
            raise ValueError(f"'@{text}': the end must be after the start")
        if stop > now:
            raise ValueError(
                f"'@{text}': the end is in the future, where offsets are not known yet: leave it "
                "out to wait for more records, or use end for the records that exist now"
            )
    return found


def resolve(client: SyncClient, stream: str, wanted: Range) -> Bounds:
    """Return the arguments for the client. The daemon is asked only if the range depends on the
    stream."""
    return (
        resolve_position(client, stream, wanted.start),
        None if wanted.stop is None else _resolve_stop(client, stream, wanted.stop),
    )


def resolve_position(client: SyncClient, stream: str, position: Position) -> Start:
    """Convert a position to a start for the client. Raises OffsetOutOfRange and the other errors of
    a fetch."""
    if not isinstance(position, Relative):
        return position
    header = client.fetch(stream, "latest", max_bytes=1).header
    first, end = header.log_start_offset, header.high_watermark
    if position.from_end:
        return max(end - position.count, first)
    return min(first + position.count, end)


def offset_at(client: SyncClient, stream: str, position: Position) -> int:
    """Return the offset of `position` at this moment."""
    found = resolve_position(client, stream, position)
    return (
        found if isinstance(found, int) else client.fetch(stream, found, max_bytes=1).header.offset
    )


def _resolve_stop(client: SyncClient, stream: str, stop: Position) -> Until:
    if stop == "latest":
        return "end"
    if stop == "earliest":
        raise InvalidArgument(f"{stop!r} is not an end")
    return offset_at(client, stream, stop)
