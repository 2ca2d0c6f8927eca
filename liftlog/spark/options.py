"""The options of a read. All options are checked before the read begins.

Spark passes values as text, and ignores the case of names. An unknown name is an error: if a
misspelt `startingOffset` were ignored, the read would return other records than the user requested.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from acl import subjects as patterns
from liftlog.client.connecting.target import DEFAULT_ADDRESS, DEFAULT_PORT, Address
from liftlog.errors import InvalidArgument
from liftlog.names import check_stream_name
from liftlog.spark.columns import did_you_mean, parse_columns

Position: TypeAlias = int | Literal["earliest", "latest"] | datetime
"""A position in a stream: an offset, an end of the stream, or the first record with a timestamp at
or after a time."""

EARLIEST: Literal["earliest"] = "earliest"
LATEST: Literal["latest"] = "latest"

NAMES = (
    "stream",
    "server",
    "path",
    "startingOffset",
    "endingOffset",
    "startTimestamp",
    "endTimestamp",
    "subject",
    "columns",
    "compact",
    "includeHeaders",
    "rowsPerBatch",
    "targetPartitionBytes",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "failOnDataLoss",
    "leaseSeconds",
    "tokenFile",
    "nkeyFile",
    "tlsCaFile",
    "pushdown",
    "filterInDaemon",
)

DEFAULT_ROWS_PER_BATCH = 10_000
DEFAULT_PARTITION_BYTES = 128 * 1024 * 1024  # the default of Spark's own file sources
COMPACT_PARTITION_BYTES = 256 * 1024 * 1024
"""The default size of a part with `compact`. In a larger part more superseded records are dropped,
but a task holds its whole part in memory."""

DEFAULT_LEASE_SECONDS = 60
"""Default duration of a lease. This time is short, because a plan that is never run completely
keeps its lease for this time."""
MAX_LEASE_SECONDS = 3600

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ISO = re.compile(
    r"(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?(Z|[+-](0[0-9]|1[0-7]):[0-5][0-9])?)?"
)
"""Pattern of a time. The connector in Java has its own copy of this pattern, because the two
languages share no library."""


@dataclass(frozen=True, slots=True)
class Narrowing:
    """Limits from the conditions of a query. They apply in addition to the options of the read."""

    first_offset: int = 0
    end_offset: int | None = None
    not_before: datetime | None = None
    key: bytes | None = None


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """The options of a read. `path` is set if the read uses files; otherwise it uses the daemon at
    `server`."""

    stream: str
    server: str
    path: str | None
    start: Position
    end: Position
    subject: str | None
    columns: tuple[str, ...]
    compact: bool
    rows_per_batch: int
    target_partition_bytes: int
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    fail_on_data_loss: bool
    lease_seconds: int
    token_file: str | None
    tls_ca_file: str | None
    nkey_file: str | None = None
    pushdown: bool = False
    filter_in_daemon: bool = False
    narrowing: Narrowing = Narrowing()


def parse_options(given: Mapping[str, str], *, streaming: bool = False) -> ScanOptions:
    """Parse and check the options. Raises InvalidArgument; the text of the error names the option
    and the valid values."""
    known = {name.lower(): name for name in NAMES}
    values: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() not in known:
            raise _unknown(name)
        values[known[name.lower()]] = value
    path = values.get("path")
    if path is not None and "server" in values:
        raise InvalidArgument(
            f"server and path={path!r} exclude each other",
            hint="name the stream with the option stream, and do not pass it to load()",
        )
    if "tokenFile" in values and "nkeyFile" in values:
        raise InvalidArgument("tokenFile and nkeyFile exclude each other")
    compact = _flag(values, "compact", default=False)
    pushdown = _flag(values, "pushdown", default=False)
    if compact and pushdown:
        raise InvalidArgument(
            "compact and pushdown exclude each other: conditions apply to what compact keeps",
            hint="select the records to compact with options such as subject and endingOffset",
        )
    if streaming:
        if compact:
            raise InvalidArgument(
                "compact makes no sense for readStream: the record that is now the newest of its "
                "key can be superseded in the next micro-batch",
                hint="write to a sink that keeps the newest offset per key, or read a batch",
            )
        for name in ("endingOffset", "endTimestamp"):
            if name in values:
                raise InvalidArgument(
                    f"{name} makes no sense for readStream, which has no end",
                    hint="use .trigger(availableNow=True) to stop at what is there now",
                )
    return ScanOptions(
        stream=_stream(values, path),
        server=_addresses(values.get("server")),
        path=path,
        start=_position(values, "startingOffset", "startTimestamp", EARLIEST),
        end=_position(values, "endingOffset", "endTimestamp", LATEST),
        subject=_pattern(values.get("subject")),
        columns=parse_columns(
            values.get("columns"), include_headers=_flag(values, "includeHeaders", default=False)
        ),
        compact=compact,
        rows_per_batch=_count(values, "rowsPerBatch") or DEFAULT_ROWS_PER_BATCH,
        target_partition_bytes=_size(values, "targetPartitionBytes")
        or (COMPACT_PARTITION_BYTES if compact else DEFAULT_PARTITION_BYTES),
        max_offsets_per_trigger=_count(values, "maxOffsetsPerTrigger"),
        max_bytes_per_trigger=_size(values, "maxBytesPerTrigger"),
        fail_on_data_loss=_flag(values, "failOnDataLoss", default=True),
        lease_seconds=_lease_seconds(values),
        token_file=values.get("tokenFile"),
        tls_ca_file=values.get("tlsCaFile"),
        nkey_file=values.get("nkeyFile"),
        pushdown=pushdown,
        filter_in_daemon=_flag(values, "filterInDaemon", default=False),
    )


def _unknown(name: str) -> InvalidArgument:
    if name.lower() == "token":
        return InvalidArgument(
            "a token cannot be an option: options are pickled into every task and shown in plans",
            hint="write it to a file that driver and executors can read, and give the path as "
            "tokenFile",
        )
    return InvalidArgument(
        f"there is no option {name!r}{did_you_mean(name, NAMES)}",
        hint=f"the options are {', '.join(NAMES)}",
    )


def _stream(values: Mapping[str, str], path: str | None) -> str:
    name = values.get("stream")
    if name is None:
        if path is None:
            raise InvalidArgument(
                "which stream is to be read?",
                hint='add .option("stream", "<name>"); in SQL, use CREATE TEMPORARY VIEW <view> '
                "USING liftlog OPTIONS (stream '<name>'): CREATE TABLE passes no options on",
            )
        name = Path(path.rstrip("/")).name
    elif path is None:
        check_stream_name(name, may_be_system=True)
    return name


def _addresses(given: str | None) -> str:
    """Return the addresses of a daemon, or of the nodes of a cluster, separated by commas."""
    if given is None:
        return DEFAULT_ADDRESS
    return ",".join([_address(one.strip()) for one in given.split(",")])


def _address(given: str) -> str:
    text = given
    if "://" not in text and not text.startswith("/"):
        text = f"tcp://{text}"
    try:
        address = Address.parse(text)
    except InvalidArgument as error:
        raise InvalidArgument(
            f"server: {error.message}",
            hint="use host:port, tls://host:port or unix:///path",
        ) from error
    if not address.path and urlsplit(text).port is None:
        # A missing port is an error here. With a default port, a job on many hosts would fail only
        # when it connects.
        wanted = given.rstrip(":/")
        raise InvalidArgument(
            f"server={given!r} has no port",
            hint=f"write server={wanted}:{DEFAULT_PORT}, with the port of the daemon's pull socket",
        )
    return address.text


def _position(
    values: Mapping[str, str], offset_name: str, time_name: str, default: Position
) -> Position:
    offset, time = values.get(offset_name), values.get(time_name)
    if offset is not None and time is not None:
        raise InvalidArgument(f"{offset_name} and {time_name} exclude each other")
    if time is not None:
        return _time(time_name, time)
    if offset is None:
        return default
    text = offset.strip().lower()
    if re.fullmatch(r"\d{1,19}", text):
        return int(text)
    if text == LATEST:
        return LATEST
    if text == EARLIEST and default == EARLIEST:
        return EARLIEST
    allowed = "earliest, latest or an offset" if default == EARLIEST else "latest or an offset"
    raise InvalidArgument(f"{offset_name}={offset!r} is not {allowed}")


def _time(name: str, text: str) -> datetime:
    stripped = text.strip()
    try:
        if re.fullmatch(r"[0-9]{9,15}", stripped):
            return _EPOCH + timedelta(milliseconds=int(stripped))
        if not _ISO.fullmatch(stripped):
            raise ValueError  # the functions below accept more forms than the jar
        found = datetime.fromisoformat(stripped)
    except (ValueError, OverflowError):
        raise InvalidArgument(
            f"{name}={text!r} is not a time",
            hint="use ISO 8601 such as 2026-01-31T12:00:00Z, or milliseconds since 1970",
        ) from None
    # Driver and executors can have different time zones, so a time without a zone is not local
    # time.
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def _pattern(text: str | None) -> str | None:
    if text is None:
        return None
    wrong = patterns.why_invalid(text)
    if wrong is not None:
        raise InvalidArgument(f"subject={text!r} is not a subject pattern: {wrong}")
    return text


def _flag(values: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = values.get(name)
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise InvalidArgument(f"{name}={text!r} is neither true nor false")
    return text.strip().lower() == "true"


def _count(values: Mapping[str, str], name: str) -> int | None:
    text = values.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,18}", text.strip()) or not int(text):
        raise InvalidArgument(f"{name}={text!r} is not a number above 0")
    return int(text)


def _lease_seconds(values: Mapping[str, str]) -> int:
    seconds = _count(values, "leaseSeconds") or DEFAULT_LEASE_SECONDS
    if seconds > MAX_LEASE_SECONDS:
        raise InvalidArgument(
            f"leaseSeconds={seconds} is longer than a lease can last, {MAX_LEASE_SECONDS}",
            hint="tasks renew it, so it only has to outlast their wait for an executor",
        )
    return seconds


def _size(values: Mapping[str, str], name: str) -> int | None:
    text = values.get(name)
    if text is None:
        return None
    from liftlog.settings.units import parse_size  # slow, and rarely needed

    try:
        size = parse_size(text.strip())
    except ValueError:
        size = 0
    if size < 1:
        raise InvalidArgument(
            f"{name}={text!r} is not a size", hint="use bytes, or a unit as in 64MiB"
        )
    return size
