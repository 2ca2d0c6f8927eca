"""`liftlog consume`: reads a stream over the socket."""

from __future__ import annotations

import os
import re
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from liftlog.cli.lib.command_groups import Command
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.nats_server import nats_options
from liftlog.cli.lib.options import (
    connect_to_server,
    debug_option,
    filter_options,
    output_format,
    server_options,
    wide_wanted,
)
from liftlog.cli.lib.problems import Problem, warn
from liftlog.cli.lib.ranges import (
    HELP,
    Range,
    Relative,
    range_of,
    resolve,
)
from liftlog.cli.lib.record_lines import Write, record_writer
from liftlog.cli.lib.suggestions import complete_stream
from liftlog.errors import ConnectionLost, CorruptRange
from liftlog.names import is_stream_name

if TYPE_CHECKING:
    from liftlog.cli.consuming.consume_exec import Exec
    from liftlog.client import Filter, OnReset, Prefer, Reset, SyncClient
    from liftlog.client.reading.read_options import Start, Until

_FEW_RECORDS = 1000
_FEW_RECORDS_FETCH_BYTES = 64 * 1024
_ONLY_IN_A_GROUP = ("member", "session")
_ONLY_WITH_EXEC = ("dead_letter",)
_ONLY_WITH_DEAD_LETTER = ("retries", "nats_url", "creds")
_NOT_IN_A_GROUP = ("until_end", "subjects", "keys", "headers", "grep", "prefer")
_NOT_FOR_A_WORKER = (*_NOT_IN_A_GROUP, "group", "skip_damaged", "on_reset")


def _pattern(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> re.Pattern[str] | None:
    try:
        return None if value is None else re.compile(value)
    except re.error as error:
        raise click.BadParameter(f"{error}: {value!r}", context, parameter) from None


_CONSUME_HELP = """Print the records of STREAM, and wait for more until Ctrl-C.

STREAM can be a subject with a dot or wildcards, such as 'orders.eu.>'. Then the command reads the
stream that records this subject, and prints only records on it.

The daemon applies --subject, --key and --header. The command prints a record if it matches all of
these options, and --grep.

With `--output json` or `jsonl`, the command prints a key or value that is not UTF-8 as base64, and
sets `key_encoding` or `value_encoding`. If a header is not UTF-8, `headers_base64` has the whole
header block. A tombstone, which deletes its key, has the value null.

With --group any number of processes share the stream. Each record goes to one of these processes,
which prints it at least once. The same process prints all records of a key, in order. --from is the
start of a new group. After Ctrl-C the command commits, leaves the group and ends. A second Ctrl-C
ends it at once. After SIGTERM, a process with --member keeps its slots for the time --session. So
you can restart it within this time, and no slot moves to another process.

With --worker the processes share the messages of a consumer with acks, in any order. Workers over
NATS can share them too. The command creates the consumer if it does not exist. It acks a message
when it has printed the message, or when its --exec COMMAND has ended with status 0. If the COMMAND
fails, the message is delivered again after a pause. The pause begins at 0.5 s and doubles up to 30
s. After Ctrl-C the command returns the messages that are not acked.

An --exec COMMAND can end with status 75 to report that it cannot process any record now. This
worker then ends, and the record is delivered again. The same happens if the shell cannot run the
COMMAND.

\b
Examples:
  liftlog consume orders --from -10 --until-end        the last ten
  liftlog consume orders --from @-1h:-5m -o jsonl      an hour ago to five minutes ago
  liftlog consume orders --from end --subject 'orders.eu.>'
  liftlog consume orders --group billing --member w1   a worker; start as many as you like
  liftlog consume orders --group billing --exec ./bill.sh --dead-letter dead.orders
  liftlog consume orders --worker billing --exec ./bill.sh     one of the workers of billing
  liftlog consume orders --grep 'customer": 17\\b' --until-end
  liftlog consume orders --fields offset,timestamp,value.customer,headers.trace -f
  liftlog consume orders --until-end --template '{{.key}} {{.value.total}}'
"""


@click.command(cls=Command, help=_CONSUME_HELP)
@click.argument("stream", shell_complete=complete_stream)
@click.option(
    "--from",
    "--offset",
    "wanted",
    callback=range_of,
    default="start",
    metavar="RANGE",
    help=f"The range to read: {HELP}. Default: start.",
)
@click.option(
    "--until-end/--follow",
    " /-f",
    "until_end",
    help="Stop at the current end, or wait for more records (default).",
)
@click.option("-n", "limit", type=click.IntRange(min=1), metavar="N", help="Stop after N records.")
@click.option(
    "--skip-damaged",
    "--skip-corrupt",
    is_flag=True,
    help=(
        "Skip damaged records, and report them on stderr. If records were skipped, the exit code "
        "is 8."
    ),
)
@filter_options
@click.option(
    "--grep",
    metavar="REGEX",
    callback=_pattern,
    help="Only records whose value, as text, matches this regular expression. Write (?i) at its "
    "start to ignore case. The command fetches every record to compare it.",
)
@click.option(
    "--on-reset",
    type=click.Choice(["error", "earliest", "latest"]),
    default="error",
    help="Action if the next records no longer exist (because of retention, or because the stream "
    "was created again). error: stop. earliest or latest: report this on stderr, and continue at "
    "the first record or with new records. Default: error.",
)
@click.option(
    "--prefer",
    type=click.Choice(["leader", "nearest"]),
    default="leader",
    help="In a cluster: read from the node that leads the stream (leader), or from the node of "
    "--server if its copy is in sync (nearest). Default: leader.",
)
@click.option(
    "--group",
    metavar="GROUP",
    help="Share STREAM with the other members of this consumer group: print the records of the "
    "slots of this member, and commit the printed records.",
)
@click.option(
    "--member",
    metavar="NAME",
    help="With --group: a fixed name. A process that restarts with this name within --session "
    "receives the same slots. Default: a random name.",
)
@click.option(
    "--session",
    type=click.FloatRange(min=0.2, max=3600),
    default=10.0,
    metavar="SECONDS",
    help="With --group: after this time without a heartbeat from this member, other members "
    "receive its slots. Default: 10.",
)
@click.option(
    "--worker",
    metavar="CONSUMER",
    help="Share STREAM with the other workers of this consumer with acks: print messages, and ack "
    "them.",
)
@click.option(
    "--exec",
    "command",
    metavar="COMMAND",
    help="With --group or --worker: run COMMAND by /bin/sh for each record, instead of printing "
    "the record. The record is processed when COMMAND ends with status 0. The standard input of "
    "COMMAND is the value, or with -o json the record as one line of JSON. COMMAND has the "
    "environment variables RECORD_OFFSET, RECORD_SUBJECT, RECORD_KEY, RECORD_STREAM and "
    "RECORD_TOMBSTONE.",
)
@click.option(
    "--dead-letter",
    metavar="SUBJECT",
    help="With --exec: if COMMAND fails for a record, publish the record on this NATS subject, and "
    "continue when a stream has acked it. Default: this worker ends when COMMAND fails.",
)
@click.option(
    "--retries",
    type=click.IntRange(min=0),
    default=3,
    metavar="N",
    help="With --dead-letter: number of times to run COMMAND again before the record is "
    "published. The pauses begin at 0.5 s and double up to 30 s. Default: 3.",
)
@nats_options
@click.option(
    "--reconnect-for",
    type=click.FloatRange(min=0),
    default=60.0,
    metavar="SECONDS",
    help="Time for which the command tries to reconnect after a lost connection. Default: 60.",
)
@server_options
@debug_option
def consume(
    stream: str,
    wanted: Range,
    until_end: bool,
    limit: int | None,
    skip_damaged: bool,
    subjects: tuple[str, ...],
    keys: tuple[str, ...],
    headers: tuple[str, ...],
    grep: re.Pattern[str] | None,
    on_reset: OnReset,
    prefer: Prefer,
    group: str | None,
    member: str | None,
    session: float,
    worker: str | None,
    command: str | None,
    dead_letter: str | None,
    retries: int,
    nats_url: str | None,
    creds: Path | None,
    reconnect_for: float,
) -> ExitCode:
    wanted = _checked(wanted, until_end, group, worker, command, dead_letter)
    style, wide = output_format(), wide_wanted()
    connected = connect_to_server(reconnect_for=reconnect_for)
    printing: AbstractContextManager[Write] = record_writer(style, wide=wide, found=grep)
    if command is not None:
        printing = nullcontext(lambda _: None)  # the command prints its own output
    with connected as client, printing as write:
        if group is None and worker is None and not is_stream_name(stream, may_be_system=True):
            stream, subjects = _stream_of(client, stream), (*subjects, stream)
        start, until = resolve(client, stream, wanted)
        executed: Exec | None = None
        if command is not None:
            from liftlog.cli.consuming.consume_exec import Exec

            as_json = style in ("json", "jsonl")
            executed = Exec(command, as_json, dead_letter, retries, nats_url, creds)
        if worker is not None:
            from liftlog.cli.consuming.consume_worker import Work

            return Work(worker, stream, start, limit, executed).run(client, write)
        if group is not None:
            from liftlog.cli.consuming.consume_group import Membership

            return Membership(
                group, stream, member, session, start, limit, on_reset, skip_damaged, executed
            ).run(client, write)
        reading = Reading(
            client,
            stream,
            start,
            limit,
            write,
            skip_damaged=skip_damaged,
            on_reset=on_reset,
            prefer=prefer,
            only=_filter(subjects, keys, headers),
            grep=grep,
        )
        reading.run_with_hints(until)
        return ExitCode.DAMAGED if reading.damaged else ExitCode.OK


def _checked(
    wanted: Range,
    until_end: bool,
    group: str | None,
    worker: str | None,
    command: str | None,
    dead_letter: str | None,
) -> Range:
    """Return the range to read. Raises UsageError for options that exclude each other."""
    if group is None:
        _refuse("needs --group.", _ONLY_IN_A_GROUP)
    if worker is not None:
        _refuse("cannot be combined with --worker.", _NOT_FOR_A_WORKER)
    elif group is not None:
        _refuse("cannot be combined with --group.", _NOT_IN_A_GROUP)
    else:
        _refuse("needs --group or --worker.", ("command",))
    if wanted.stop is not None and (group or worker):
        raise click.UsageError(
            f"--from cannot have an end with {'--group' if group else '--worker'}.",
            click.get_current_context(),
        )
    if command is None:
        _refuse("needs --exec.", _ONLY_WITH_EXEC)
    if dead_letter is None:
        _refuse("needs --dead-letter.", _ONLY_WITH_DEAD_LETTER)
    if not until_end:
        return wanted
    if wanted.stop is not None:
        raise click.UsageError(
            "--until-end cannot be combined with a --from that has an end.",
            click.get_current_context(),
        )
    return Range(wanted.start, "latest")


def _refuse(why: str, parameters: tuple[str, ...]) -> None:
    """Raise UsageError if one of these parameters is given."""
    context = click.get_current_context()
    for one in context.command.params:
        source = context.get_parameter_source(one.name or "")
        if one.name in parameters and source not in (None, ParameterSource.DEFAULT):
            raise click.UsageError(f"{one.opts[0]} {why}", context)


def _stream_of(client: SyncClient, subject: str) -> str:
    """Return the stream that records `subject`. Raises InvalidArgument, Problem."""
    found = [one.name for one in client.streams_for(subject)]
    if not found:
        raise Problem(
            f"no stream records {subject}",
            ExitCode.NOT_FOUND,
            hint=f"`liftlog stream create NAME --subject '{subject}'` creates one",
        )
    if len(found) > 1:
        raise Problem(
            f"several streams record {subject}: {', '.join(found)}",
            ExitCode.USAGE,
            hint=f"choose one: liftlog consume {found[0]} --subject '{subject}'",
        )
    return found[0]


def matches(pattern: re.Pattern[str], value: bytes | None) -> bool:
    """Return True if the pattern matches anywhere in the value. A tombstone has no value."""
    return value is not None and pattern.search(value.decode(errors="replace")) is not None


def _filter(
    subjects: tuple[str, ...], keys: tuple[str, ...], headers: tuple[str, ...]
) -> Filter | None:
    from liftlog.client import Filter

    if not (subjects or keys or headers):
        return None
    raw_keys = [os.fsencode(key) for key in keys]  # decoded from the bytes that the shell passed
    return Filter(subject=subjects or None, key=raw_keys or None, header=headers or None)


@click.command(cls=Command)
@click.argument("stream", shell_complete=complete_stream)
@click.option(
    "-n",
    "count",
    type=click.IntRange(min=1),
    default=10,
    metavar="N",
    help="Number of offsets before the end. Default: 10.",
)
@click.option(
    "--follow", "-f", is_flag=True, help="After these records, wait for more records until Ctrl-C."
)
@server_options
@debug_option
@click.pass_context
def tail(context: click.Context, stream: str, count: int, follow: bool) -> ExitCode:
    """Print the last records of STREAM.

    This is the same as `liftlog consume STREAM --from -10 --until-end`. `liftlog consume` has more
    options.

    \b
    Examples:
      liftlog tail orders
      liftlog tail orders -n 100 -f
    """
    wanted = Range(Relative(count, from_end=True))
    code: ExitCode = context.invoke(consume, stream=stream, wanted=wanted, until_end=not follow)
    return code


class Reading:
    """The progress of one run of `liftlog consume`."""

    def __init__(
        self,
        client: SyncClient,
        stream: str,
        start: Start,
        limit: int | None,
        write: Write,
        *,
        skip_damaged: bool,
        on_reset: OnReset = "error",
        prefer: Prefer = "leader",
        only: Filter | None = None,
        grep: re.Pattern[str] | None = None,
    ) -> None:
        self.damaged = False
        self.printed = 0
        self._client = client
        self._stream = stream
        self._position: Start = start
        self._left = limit
        self._write = write
        self._grep = grep
        self._options: dict[str, Any] = {
            "filter": only,
            "on_reset": on_reset,
            "prefer": prefer,
            "reset_callback": self._tell_reset,
        }
        if skip_damaged:
            self._options["on_corrupt"] = self._skip
        if limit is not None and limit <= _FEW_RECORDS and grep is None:
            self._options |= {"fetch_bytes": _FEW_RECORDS_FETCH_BYTES, "read_ahead_bytes": 0}

    @property
    def position_text(self) -> str:
        position = self._position
        return f"@{position.isoformat()}" if isinstance(position, datetime) else str(position)

    def _skip(self, error: CorruptRange) -> None:
        warn(error.message)
        self.damaged = True
        self._position = error.next_offset

    def _tell_reset(self, reset: Reset) -> None:
        warn(f"{reset.error.message}; continuing at offset {reset.to_offset}")
        self._position = reset.to_offset

    def run(self, until: Until) -> None:
        """Print records until the end, or the limit."""
        batches = self._client.read_batches(self._stream, self._position, until, **self._options)
        for batch in batches:
            records = batch.records()
            following = batch.next_offset
            if self._grep is not None:
                records = [one for one in records if matches(self._grep, one.value)]
            if self._left is not None:
                if len(records) > self._left:
                    records = records[: self._left]
                    following = records[-1].offset + 1
                self._left -= len(records)
            self._write(records)
            self.printed += len(records)
            self._position = following
            if self._left == 0:
                batches.close()
                return

    def run_with_hints(self, until: Until) -> None:
        """Call `run`. If it raises an error, add a hint with the option that continues after the
        printed records."""
        try:
            self.run(until)
        except CorruptRange as error:
            error.hint = f"continue with --from {error.next_offset}, or use --skip-damaged"
            raise
        except ConnectionLost as error:
            error.hint = f"continue with --from {self.position_text}"
            raise
