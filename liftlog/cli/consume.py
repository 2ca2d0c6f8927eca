"""`liftlog consume`: read a stream over the socket."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from liftlog.cli.exit_codes import ExitCode
from liftlog.cli.options import connect_to_server, debug_option, output_format, server_options
from liftlog.cli.positions import HELP, Position, position_of
from liftlog.cli.problems import warn
from liftlog.errors import ConnectionLost, CorruptRange

if TYPE_CHECKING:
    from liftlog.cli.record_output import Write
    from liftlog.client import SyncClient

_FEW_RECORDS = 1000
_FEW_RECORDS_FETCH_BYTES = 64 * 1024


@click.command()
@click.argument("stream")
@click.option(
    "--from",
    "start",
    callback=position_of,
    default="earliest",
    metavar="POSITION",
    help=f"Where to start: {HELP}. Default: earliest.",
)
@click.option(
    "--until-end", is_flag=True, help="Stop at what is the end now, instead of waiting for more."
)
@click.option("-n", "limit", type=click.IntRange(min=1), metavar="N", help="Stop after N records.")
@click.option(
    "--skip-damaged",
    "--skip-corrupt",
    is_flag=True,
    help="Go on behind damaged records; they are named on stderr and the exit code is 8.",
)
@server_options
@debug_option
def consume(
    stream: str, start: Position, until_end: bool, limit: int | None, skip_damaged: bool
) -> ExitCode:
    """Print the records of STREAM, and wait for more until Ctrl-C.

    With `--output json` or `jsonl` a key or value that is not UTF-8 is printed as base64, and
    `key_encoding` or `value_encoding` says so. A deleted key (tombstone) has the value null.
    """
    from liftlog.cli.record_output import record_writer

    style = output_format()
    with connect_to_server() as client, record_writer(style) as write:
        reading = _Reading(client, stream, start, limit, write, skip_damaged=skip_damaged)
        try:
            reading.run(until="end" if until_end else None)
        except CorruptRange as error:
            error.hint = f"read on with --from {error.next_offset}, or let --skip-damaged do so"
            raise
        except ConnectionLost as error:
            error.hint = f"read on with --from {reading.position_text}"
            raise
        return ExitCode.DAMAGED if reading.damaged else ExitCode.OK


class _Reading:
    """How far one `consume` has come."""

    def __init__(
        self,
        client: SyncClient,
        stream: str,
        start: Position,
        limit: int | None,
        write: Write,
        *,
        skip_damaged: bool,
    ) -> None:
        self.damaged = False
        self._client = client
        self._stream = stream
        self._position = start
        self._left = limit
        self._write = write
        self._options: dict[str, Any] = {"on_corrupt": self._skip} if skip_damaged else {}
        if limit is not None and limit <= _FEW_RECORDS:
            self._options |= {"fetch_bytes": _FEW_RECORDS_FETCH_BYTES, "read_ahead_bytes": 0}

    @property
    def position_text(self) -> str:
        position = self._position
        return f"@{position.isoformat()}" if isinstance(position, datetime) else str(position)

    def _skip(self, error: CorruptRange) -> None:
        warn(error.message)
        self.damaged = True
        self._position = error.next_offset

    def run(self, until: Any) -> None:
        """Print records until the end, or the limit."""
        batches = self._client.read_batches(self._stream, self._position, until, **self._options)
        for batch in batches:
            records = batch.records()
            following = batch.next_offset
            if self._left is not None:
                if len(records) > self._left:
                    records = records[: self._left]
                    following = records[-1].offset + 1
                self._left -= len(records)
            self._write(records)
            self._position = following
            if self._left == 0:
                batches.close()
                return
