"""`liftlog get`: one record, by its offset."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from liftlog.cli.consuming.consume import Reading
from liftlog.cli.lib.command_groups import Command
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.options import (
    connect_to_server,
    debug_option,
    output_format,
    server_options,
    wide_wanted,
)
from liftlog.cli.lib.problems import Problem, note
from liftlog.cli.lib.ranges import MAX_OFFSET, plain_number
from liftlog.cli.lib.record_lines import record_writer
from liftlog.cli.lib.suggestions import complete_stream

if TYPE_CHECKING:
    from liftlog.client import SyncClient


def _one_offset(context: click.Context, parameter: click.Parameter, value: str) -> int:
    """Parse an offset. A user of a key-value store may type a key instead; the error for such text
    explains offsets."""
    digits = plain_number(value)
    if digits.isascii() and digits.isdigit() and 0 < int(digits) <= MAX_OFFSET:
        return int(digits)
    raise click.BadParameter(
        f"{value!r} is not an offset, a number from 1 on. The records with a key: "
        f"liftlog consume {shlex.quote(context.params['stream'])} --until-end "
        f"--key {shlex.quote(value)}",
        context,
        parameter,
    )


@click.command(cls=Command)
@click.argument("stream", shell_complete=complete_stream)
@click.argument("offset", callback=_one_offset)
@server_options
@debug_option
def get(stream: str, offset: int) -> ExitCode:
    """Print the record of STREAM at OFFSET.

    The exit code is 5 if compaction has removed the record, or if you may not read its subject.

    \b
    Examples:
      liftlog get orders 42
      liftlog get orders 42 --template '{{.value}}'
    """
    style, wide = output_format(), wide_wanted()
    with connect_to_server() as client, record_writer(style, wide=wide) as write:
        _check_below_end(client, stream, offset)
        reading = Reading(client, stream, offset, 1, write, skip_damaged=False)
        reading.run(offset + 1)
    if reading.printed:
        return ExitCode.OK
    note(
        f"{stream} has no record at offset {offset}: compaction has removed it, or you may not "
        "read its subject."
    )
    return ExitCode.NOT_FOUND


def _check_below_end(client: SyncClient, stream: str, offset: int) -> None:
    """Raise Problem for an offset at or beyond the end, because a read there would wait for the
    record."""
    end = client.describe_stream(stream).high_watermark
    if offset >= end:
        raise Problem(
            f"{stream} has no record at offset {offset} yet: it ends at {end}",
            ExitCode.OUT_OF_RANGE,
            hint=f"`liftlog tail {stream}` prints the last records",
        )
