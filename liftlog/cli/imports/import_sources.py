"""Reads the sources of `liftlog import` in batches: messages of JetStream, lines, rows of
Parquet."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.problems import Problem, check_standard_input
from liftlog.cli.lib.shapes import Path as FieldPath
from liftlog.cli.lib.shapes import text_of
from liftlog.errors import InvalidArgument, MissingDependency
from liftlog.records.json_form import lines_of_json
from liftlog.records.message_headers import MESSAGE_ID, HeaderLine, header_lines

Form = Literal["rows", "records", "copied"]

_DELETIONS = (b"KV-Operation", b"Nats-Marker-Reason")
"""Headers of the messages that JetStream stores when a key of a bucket is deleted."""

_BATCH = 500
_FETCH_SECONDS = 30


class Item(NamedTuple):
    """One message to copy. `sequence` is its number at the source, from 1. A `value` of None is a
    tombstone."""

    sequence: int
    subject: str
    value: bytes | None
    key: bytes | None = None
    headers: Sequence[HeaderLine] = ()
    message_id: str = ""
    time: str = ""


Batches = AsyncIterator[list[Item]]


@dataclass(frozen=True, slots=True)
class Mapper:
    """Maps a row of a file to a message. `subject` and `key` create texts from the row. Without
    `value`, the whole row is the value, as JSON. If the row is itself a record or a copy of one,
    then `subject`, `key` and `value` replace the fields in the row."""

    subject: Callable[[Any], str] | None = None
    key: Callable[[Any], bytes] | None = None
    value: FieldPath | None = None

    @property
    def needs_fields(self) -> bool:
        return self.key is not None or self.value is not None

    def item(self, number: int, row: Any, whole: bytes | None = None) -> Item:
        """Return the message of a row. `whole` is the unchanged text of the row; None if the source
        is not a text."""
        value: bytes | None
        if self.value is None:
            value = _as_json(row).encode() if whole is None else whole
        else:
            value = self._value_of(row)
        key = None if self.key is None else self.key(row)
        return Item(number, "" if self.subject is None else self.subject(row), value, key)

    def changed(self, item: Item, row: Mapping[str, Any]) -> Item:
        """Return the message of a row that contains its own subject, key and value."""
        if self.subject is None and not self.needs_fields:
            return item
        # `--value value` and `--key value` stand for the record's content, not for its base64.
        row = {**row, "value": _text_or_bytes(item.value), "key": _text_or_bytes(item.key)}
        if self.subject is not None:
            item = item._replace(subject=self.subject(row))
        if self.key is not None:
            item = item._replace(key=self.key(row))
        if self.value is not None and item.value is not None:  # a tombstone remains a tombstone
            item = item._replace(value=self._value_of(row))
        return item

    def _value_of(self, row: Any) -> bytes | None:
        assert self.value is not None
        found = self.value.find(row)
        return found if found is None or isinstance(found, bytes) else bytes_of(found)


def bytes_of(found: Any) -> bytes:
    """Convert the content of a field to bytes, for a key or a value."""
    return found if isinstance(found, bytes) else text_of(found).encode(errors="surrogateescape")


def _text_or_bytes(raw: bytes | None) -> str | bytes | None:
    try:
        return raw if raw is None else raw.decode()
    except UnicodeDecodeError:
        return raw


def _as_json(row: Any) -> str:
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"), default=_plain)


def _plain(value: Any) -> Any:
    """Convert types of Parquet that JSON lacks."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


# --- lines ---


@dataclass(slots=True)
class Lines:
    """Reads lines of JSON from files, one file after the other; `-` is standard input. The numbers
    of lines continue through all files."""

    files: Sequence[str]
    form: Form
    mapper: Mapper
    needs_json: bool = True
    total: int | None = field(default=None, init=False)

    async def batches(self, after: int) -> Batches:
        """Yield the messages above the number `after`. Raises InvalidArgument, OSError."""
        numbered = enumerate(self._lines(), 1)
        while chunk := list(islice(numbered, _BATCH)):
            items = [
                self._item(number, line)
                for number, line in chunk
                if self._may_be_new(number, after)
            ]
            yield [item for item in items if item.sequence > after]

    def _may_be_new(self, number: int, after: int) -> bool:
        return self.form == "copied" or number > after

    def _lines(self) -> Iterator[bytes]:
        for name in self.files:
            with ExitStack() as stack:
                opened: BinaryIO
                if name == "-":
                    check_standard_input()
                    opened = sys.stdin.buffer
                else:
                    opened = stack.enter_context(Path(name).open("rb"))
                for line in opened:
                    yield line.rstrip(b"\r\n")

    def _item(self, number: int, line: bytes) -> Item:
        if self.form == "rows" and not self.needs_json:
            return self.mapper.item(number, None, line)
        try:
            row = json.loads(line)
            if self.form == "rows":
                return self.mapper.item(number, row, line)
            item = _of_record(number, row) if self.form == "records" else _of_copy(row)
            return self.mapper.changed(item, row)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            what = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise InvalidArgument(
                f"line {number} cannot be imported: {what}",
                hint=f"--form {self.form} was asked for; see `liftlog import jsonl --help`",
            ) from None


def _of_record(number: int, row: Mapping[str, Any]) -> Item:
    """Return the item for a record as `liftlog consume --output jsonl` prints it. The object must
    have a value; null stands for a tombstone."""
    return Item(
        number,
        str(row["subject"]),
        _bytes_of(row["value"], row.get("value_encoding")),
        _bytes_of(row.get("key"), row.get("key_encoding")),
        lines := lines_of_json(row),
        message_id_of(lines),
        time=str(row.get("timestamp") or ""),
    )


def message_id_of(lines: Sequence[HeaderLine]) -> str:
    """Return the message id; the first header counts, as in NATS servers."""
    return dict(reversed(lines)).get(MESSAGE_ID.encode(), b"").decode("utf-8", "replace")


def _of_copy(row: Mapping[str, Any]) -> Item:
    """Return the item for a line of the programs in docs/examples/copying/."""
    sequence = row["sequence"]
    if not isinstance(sequence, int) or sequence < 1:
        raise ValueError(f"the sequence {sequence!r} is not a number from 1 on")
    return Item(
        sequence,
        str(row["subject"]),
        _bytes_of(row["value"], "base64"),
        _bytes_of(row.get("key"), "base64"),
        lines_of_json(row),
        str(row.get("id") or ""),
        str(row.get("time") or ""),
    )


def _bytes_of(text: str | None, encoding: str | None) -> bytes | None:
    if text is None:
        return None
    return base64.b64decode(text, validate=True) if encoding == "base64" else text.encode()


# --- Parquet ---


class Parquet:
    """Reads rows of Parquet files, one file after the other. Raises MissingDependency, OSError."""

    def __init__(self, files: Sequence[str], mapper: Mapper) -> None:
        try:
            from pyarrow import ArrowException
            from pyarrow.parquet import ParquetFile
        except ModuleNotFoundError as error:
            raise MissingDependency(
                f"reading Parquet needs {error.name}, which is not installed",
                hint="pip install 'liftlog[arrow]'",
            ) from error
        self._mapper = mapper
        self._files = []
        for name in files:
            try:
                self._files.append(ParquetFile(Path(name)))
            except ArrowException as error:
                raise InvalidArgument(f"{name} is not a Parquet file: {error}") from None
        self.total: int | None = sum(file.metadata.num_rows for file in self._files)

    async def batches(self, after: int) -> Batches:
        """Yield the rows above the number `after`. Row groups that end before it are not read."""
        done = 0
        for file in self._files:
            groups: list[int] = []
            for group in range(file.metadata.num_row_groups):
                count = file.metadata.row_group(group).num_rows
                if not groups and done + count <= after:
                    done += count
                else:
                    groups.append(group)
            for batch in file.iter_batches(_BATCH, row_groups=groups) if groups else ():
                rows = batch.to_pylist()
                yield [
                    self._mapper.item(number, row)
                    for number, row in enumerate(rows, done + 1)
                    if number > after
                ]
                done += len(rows)


# --- NATS ---


@asynccontextmanager
async def _connected(servers: list[str], creds: str | None) -> AsyncIterator[Any]:
    """Connect to the NATS servers of JetStream. The connection does not reconnect: after an
    interruption the user runs the import again. Raises Problem."""
    from nats.errors import Error

    from liftlog.cli.imports.whole_headers import WholeHeaders

    connection = WholeHeaders()
    try:
        await connection.connect(
            servers,
            name="liftlog import",
            user_credentials=creds,
            allow_reconnect=False,
            max_reconnect_attempts=1,
        )
    except (Error, OSError) as error:
        raise Problem(
            f"cannot connect to the NATS of JetStream: {error}",
            ExitCode.CANNOT_CONNECT,
            hint="check --source-nats",
        ) from error
    try:
        yield connection
    finally:
        await connection.close()


@dataclass(slots=True)
class JetStream:
    """Reads the messages of a JetStream stream, up to the end that it has when the copy begins.

    With `key_from_subject`, the subject is also the key, and JetStream's messages for deleted keys
    become tombstones. Subjects that begin with `strip` are stored without it.
    """

    servers: list[str]
    creds: str | None
    stream: str
    key_from_subject: bool = False
    strip: str = ""
    total: int | None = field(default=None, init=False)

    async def subjects(self) -> list[str]:
        """Return the subjects that the stream in JetStream records now. Raises Problem."""
        async with self._opened() as jetstream:
            found = await jetstream.stream_info(self.stream)
            return list(found.config.subjects or ())

    async def batches(self, after: int) -> Batches:
        """Yield the messages above the sequence `after`. Raises Problem."""
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        async with self._opened() as jetstream:
            consumer = await jetstream.add_consumer(
                self.stream,
                ConsumerConfig(
                    deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                    opt_start_seq=after + 1,
                    ack_policy=AckPolicy.NONE,
                    inactive_threshold=60.0,
                ),
            )
            left = self.total = consumer.num_pending or 0
            source = await jetstream.pull_subscribe_bind(stream=self.stream, consumer=consumer.name)
            count = 0
            while left:
                messages = await source.fetch(min(left, _BATCH), timeout=_FETCH_SECONDS)
                for message in messages:
                    count += 1
                    if message.metadata.sequence.consumer != count:
                        raise Problem(
                            "NATS dropped a message on the way",
                            ExitCode.TRY_AGAIN,
                            hint="run the command again: it continues where it stopped",
                        )
                left = min(left - len(messages), messages[-1].metadata.num_pending)
                yield [self._item(message) for message in messages]

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Any]:
        """Open JetStream's API on a connection of its own."""
        from nats.errors import Error
        from nats.js.errors import NotFoundError

        async with _connected(self.servers, self.creds) as connection:
            try:
                yield connection.jetstream()
            except NotFoundError as error:
                raise Problem(
                    f"JetStream has no stream {self.stream}",
                    ExitCode.NOT_FOUND,
                    hint="nats stream ls",
                ) from error
            except Error as error:
                why = str(error) or type(error).__name__
                raise Problem(
                    f"JetStream's stream {self.stream} cannot be read: {why}", ExitCode.TRY_AGAIN
                ) from error

    def _item(self, message: Any) -> Item:
        lines = header_lines(message.headers.block) if message.headers is not None else []
        subject = message.subject.removeprefix(self.strip)
        deleted = any(name in _DELETIONS for name, _ in lines)
        return Item(
            message.metadata.sequence.stream,
            subject,
            None if self.key_from_subject and deleted else message.data,
            subject.encode(errors="surrogateescape") if self.key_from_subject else None,
            lines,
            message_id_of(lines),
            message.metadata.timestamp.isoformat(),
        )
