"""`liftlog offsets`: list, show, move and delete the positions at which consumers continue."""

from __future__ import annotations

import shlex
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from liftlog.cli.lib.command_groups import Commands
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.options import (
    connect_to_server,
    debug_option,
    output_format,
    quiet,
    server_options,
    wide_wanted,
)
from liftlog.cli.lib.output import (
    print_pairs,
    print_table,
    say,
    write_lines,
    write_object,
    write_objects,
)
from liftlog.cli.lib.problems import confirmed, note
from liftlog.cli.lib.ranges import Position, position_of, resolve_position
from liftlog.cli.lib.suggestions import complete_consumer, complete_stream
from liftlog.cli.lib.text import plural, printable, show_span, show_time
from liftlog.errors import LiftlogError, StreamNotFound

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from liftlog.client import Checkpoint, SyncClient

_ONE_RECORD_BYTES = 64 * 1024
_HEADINGS = ("CONSUMER", "STREAM", "OFFSET", "LAG", "COMMITTED")
_WIDE_HEADINGS = ("EPOCH", "INCARNATION", "METADATA")


@click.group(
    cls=Commands,
    name="offsets",
    aliases={
        "list": "ls",
        "report": "ls",
        "show": "get",
        "info": "get",
        "add": "seek",
        "create": "seek",
        "set": "seek",
        "reset": "seek",
        "delete": "rm",
    },
)
@server_options
@debug_option
def offsets_commands() -> None:
    """List, show, move and delete the checkpoints of consumers.

    A checkpoint is the offset that a consumer reads next in a stream. `list`, `show`, `add` and
    `delete` are aliases of `ls`, `get`, `seek` and `rm`.
    """


@offsets_commands.command(name="ls")
@click.argument("stream", required=False, shell_complete=complete_stream)
@click.option("--consumer", "-c", metavar="NAME", help="Only checkpoints of this consumer.")
@click.option("--stream", "-s", "wanted", metavar="NAME", help="The same as STREAM.")
@click.option(
    "--lag",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Only checkpoints with a lag of at least N, or with a problem.",
)
@server_options
@debug_option
def list_offsets(stream: str | None, consumer: str | None, wanted: str | None, lag: int) -> None:
    """List all checkpoints, or the checkpoints in STREAM.

    LAG is the number of offsets that the consumer has not read yet. PROBLEM is the error that the
    consumer receives. OWNER is the principal that committed the checkpoint, if the daemon has an
    ACL.

    \b
    Examples:
      liftlog offsets ls
      liftlog offsets ls orders -o wide
      liftlog offsets ls --lag 1000
    """
    if stream and wanted and stream != wanted:
        raise click.UsageError("Name one stream, or none.", click.get_current_context())
    style, stream = output_format(), stream or wanted
    with connect_to_server() as client:
        known = client.list_checkpoints(consumer=consumer, stream=stream)
    found = [one for one in known if one.lag is None or one.lag >= lag]
    if quiet():
        write_lines([f"{printable(one.consumer)} {printable(one.stream)}" for one in found])
    elif style != "table":
        write_objects([one.to_wire() for one in found], style)
    elif found:
        print_table(*table_of(found, wide=wide_wanted()), right=(2, 3))
    elif known:
        note(f"No checkpoint has {plural(lag, 'offset')} left to read.")
    elif stream is None:
        note("There are no checkpoints.")
    else:
        note(f"There are no checkpoints in {stream}.")


@offsets_commands.command()
@click.argument("consumer", shell_complete=complete_consumer)
@click.argument("stream", required=False, shell_complete=complete_stream)
@server_options
@debug_option
def get(consumer: str, stream: str | None) -> ExitCode:
    """Show the checkpoint of CONSUMER in STREAM.

    You can omit STREAM if CONSUMER has a checkpoint in only one stream. The exit code is 5 if the
    checkpoint does not exist.

    \b
    Examples:
      liftlog offsets get billing orders
      liftlog offsets get billing orders -o json | jq .lag
    """
    style = output_format()
    unread = ""
    with connect_to_server() as client:
        if stream is None:
            found = _only_one(client.list_checkpoints(consumer=consumer))
        else:
            with _consumer_first(client, "get", consumer, stream):
                found = client.fetch_checkpoint(consumer, stream, check=False)
        if found is not None and style == "table":
            unread = _oldest_unread(client, found)
    if found is None:
        note(f"{consumer} has no checkpoint{'' if stream is None else f' in {stream}'}.")
        return ExitCode.NOT_FOUND
    if style == "table":
        print_pairs(_facts(found, unread))
    else:
        write_object(found.to_wire(), style)
    return ExitCode.OK


def _only_one(found: Sequence[Checkpoint]) -> Checkpoint | None:
    """Return the only checkpoint, if there is one. Raises UsageError if there are several."""
    if len(found) > 1:
        streams = ", ".join(printable(one.stream) for one in found)
        raise click.UsageError(
            f"It has checkpoints in {streams}: name the stream.", click.get_current_context()
        )
    return found[0] if found else None


@contextmanager
def _consumer_first(client: SyncClient, command: str, consumer: str, stream: str) -> Iterator[None]:
    """Explain the order of the arguments if the stream does not exist, because other tools take the
    stream first."""
    try:
        yield
    except StreamNotFound as error:
        with suppress(LiftlogError):
            client.describe_stream(consumer)
            swapped = f"{shlex.quote(stream)} {shlex.quote(consumer)}"
            error.hint = f"the consumer comes first: liftlog offsets {command} {swapped}"
        raise


def _oldest_unread(client: SyncClient, found: Checkpoint) -> str:
    """Return the time at which the consumer's next record arrived, as a measure of the consumer's
    delay; empty if there is no next record, or if the user may not read it."""
    if not found.lag or found.problem:
        return ""
    try:
        records = client.read(
            found.stream,
            found.offset,
            until="end",
            columns=["timestamp"],
            fetch_bytes=_ONE_RECORD_BYTES,
            read_ahead_bytes=0,
        )
        for record in records:
            records.close()
            return _when(record.timestamp_ns)
    except LiftlogError:
        pass
    return ""


def _when(time_ns: int) -> str:
    return f"{show_time(time_ns)} ({show_span(max(time.time() - time_ns / 1e9, 0))} ago)"


@offsets_commands.command()
@click.argument("consumer", shell_complete=complete_consumer)
@click.argument("stream", shell_complete=complete_stream)
@click.argument("position", callback=position_of)
@click.option("--dry-run", "-n", is_flag=True, help="Show the change without making it.")
@click.option("--yes", "-y", "assume_yes", is_flag=True, help="Do not ask.")
@server_options
@debug_option
def seek(
    consumer: str, stream: str, position: Position, dry_run: bool, assume_yes: bool
) -> ExitCode:
    """Move the checkpoint of CONSUMER in STREAM to POSITION.

    POSITION is an offset, start, end, +100 (after the first 100), @TIME as in `liftlog consume
    --from`, or -100 (before the last 100). Write -- before a negative POSITION.

    Stop the consumer first. A running consumer does not read its checkpoint again, and overwrites
    it with its own position. If the checkpoint moves between the preview and the change, the daemon
    refuses the change. For the first checkpoint of a new consumer, the command does not ask.

    \b
    Examples:
      liftlog offsets seek billing orders start --dry-run
      liftlog offsets seek billing orders @-1h --yes
      liftlog offsets seek replay orders 1h
      liftlog offsets seek billing orders --yes -- -100
    """
    style = output_format()
    with connect_to_server() as client:
        with _consumer_first(client, "seek", consumer, stream):
            present = client.fetch_checkpoint(consumer, stream, check=False)
        incarnation, epoch, offset, mark = _resolve(client, stream, position)
        preview = _preview(consumer, stream, present, offset, mark)
        is_first = preview["before"] is None  # this loses nothing
        done = not dry_run and _agreed(preview, assume_yes=assume_yes or is_first)
        if done:
            client.commit_checkpoint(
                consumer,
                stream,
                offset,
                0 if present is None else present.offset,
                metadata="" if present is None else present.metadata,
                incarnation=incarnation,
                epoch=epoch,
            )
    return _told(preview, style, done=done, dry_run=dry_run)


@offsets_commands.command()
@click.argument("consumer", shell_complete=complete_consumer)
@click.argument("stream", shell_complete=complete_stream)
@click.option(
    "--dry-run", "-n", is_flag=True, help="Show the data that would be deleted, and delete nothing."
)
@click.option("--yes", "-y", "--force", "-f", "assume_yes", is_flag=True, help="Do not ask.")
@server_options
@debug_option
def rm(consumer: str, stream: str, dry_run: bool, assume_yes: bool) -> ExitCode:
    """Delete the checkpoint of CONSUMER in STREAM.

    The stream itself may be deleted already. The exit code is 5 if the checkpoint does not exist.

    \b
    Examples:
      liftlog offsets rm billing orders --dry-run
      liftlog offsets rm billing orders --yes
    """
    style = output_format()
    with connect_to_server() as client:
        # The list includes checkpoints of deleted streams.
        found = client.list_checkpoints(consumer=consumer, stream=stream)
        if not found:
            note(f"{printable(consumer)} has no checkpoint in {printable(stream)}.")
            return ExitCode.NOT_FOUND
        preview = _preview(consumer, stream, found[0], None, None)
        done = not dry_run and _agreed(preview, assume_yes=assume_yes)
        if done:
            client.delete_checkpoint(consumer, stream, found[0].offset)
    return _told(preview, style, done=done, dry_run=dry_run)


def _resolve(client: SyncClient, stream: str, position: Position) -> tuple[str, int, int, int]:
    """Return incarnation, leader epoch, offset and high watermark, all of the same moment, because
    one answer to a fetch contains them. Raises OffsetOutOfRange."""
    start = resolve_position(client, stream, position)
    header = client.fetch(stream, start, max_bytes=1).header
    return header.incarnation, header.leader_epoch, header.offset, header.high_watermark


def _preview(
    consumer: str, stream: str, present: Checkpoint | None, offset: int | None, mark: int | None
) -> dict[str, Any]:
    """Describe the change. `records` is negative if records are read again, and positive if records
    are skipped."""
    before = None if present is None else present.offset or None
    known = present is not None and not present.problem and offset is not None
    return {
        "consumer": consumer,
        "stream": stream,
        "before": before,
        "offset": offset,
        "moved_by": offset - before if known and before is not None and offset else None,
        "lag": None if offset is None or mark is None else max(mark - offset, 0),
    }


def _words(preview: dict[str, Any]) -> str:
    before, offset, moved = preview["before"], preview["offset"], preview["moved_by"]
    who = f"{printable(preview['consumer'])} in {printable(preview['stream'])}"
    if offset is None:
        return f"{who}: checkpoint {before or 0:,} is deleted"
    text = f"{who}: {'no checkpoint' if before is None else f'{before:,}'} -> {offset:,}"
    if moved:
        text += f", {plural(abs(moved), 'offset')} {'skipped' if moved > 0 else 'read again'}"
    return f"{text}, {plural(preview['lag'], 'offset')} left to read"


def _agreed(preview: dict[str, Any], *, assume_yes: bool) -> bool:
    return assume_yes or confirmed(f"{_words(preview)}. Do it?")


def _told(preview: dict[str, Any], style: str, *, done: bool, dry_run: bool) -> ExitCode:
    if style == "table":
        say(_words(preview))
    else:
        write_object(preview | {"done": done}, style)
    if not done:
        note("Nothing was changed.")
    return ExitCode.OK if done or dry_run else ExitCode.FAILED


def table_of(
    found: Sequence[Checkpoint], *, wide: bool
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return headings and rows. Without an ACL, checkpoints have no owner, and the table has no
    column of owners."""
    owners = wide or any(one.owner for one in found)
    headings = (
        *_HEADINGS,
        *(("OWNER",) if owners else ()),
        "PROBLEM",
        *(_WIDE_HEADINGS if wide else ()),
    )
    rows = [
        (
            printable(one.consumer),
            printable(one.stream),
            f"{one.offset:,}",
            "" if one.lag is None else f"{one.lag:,}",
            show_time(one.time_ns),
            *((printable(one.owner),) if owners else ()),
            printable(_problem_of(one)),
            *((str(one.epoch), one.incarnation, printable(one.metadata)) if wide else ()),
        )
        for one in found
    ]
    return headings, rows


def _problem_of(found: Checkpoint) -> str:
    return found.problem or ("uncertain: a newer checkpoint may be lost" if found.uncertain else "")


def _facts(found: Checkpoint, unread: str = "") -> list[tuple[str, str]]:
    facts = [
        ("consumer", found.consumer),
        ("stream", found.stream),
        ("offset", f"{found.offset:,}"),
        ("lag", "" if found.lag is None else f"{found.lag:,}"),
        ("oldest unread", unread),
        ("problem", _problem_of(found)),
        ("committed", _when(found.time_ns)),
        ("owner", found.owner),
        ("metadata", found.metadata),
        ("leader epoch", str(found.epoch)),
        ("incarnation", found.incarnation),
    ]
    return [(label, printable(text)) for label, text in facts if text]
