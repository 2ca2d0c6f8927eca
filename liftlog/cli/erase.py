"""`liftlog erase`: hides records of a stream from every reader, by their offsets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.options import (
    connect_to_server,
    debug_option,
    output_format,
    server_options,
)
from liftlog.cli.lib.output import say, write_object
from liftlog.cli.lib.problems import confirmed, note
from liftlog.cli.lib.suggestions import complete_stream
from liftlog.cli.lib.text import plural, printable

if TYPE_CHECKING:
    from liftlog.protocol.administration import Erased

_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?", re.ASCII)


def _ranges(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> list[tuple[int, int]]:
    """Parse the offsets, each N or FIRST-LAST, to ranges [first, next)."""
    ranges = []
    for value in values:
        match = _RANGE.fullmatch(value)
        first = int(match[1]) if match else 0
        last = int(match[2] or first) if match else -1
        if last < first:
            raise click.BadParameter(f"{value!r} is neither an offset nor a range FIRST-LAST")
        ranges.append((first, last + 1))
    return ranges


@click.command()
@click.argument("stream", shell_complete=complete_stream)
@click.option(
    "--offset",
    "ranges",
    multiple=True,
    required=True,
    callback=_ranges,
    metavar="N|FIRST-LAST",
    help="The offset of a record, or the first and the last offset of a range. Can be repeated.",
)
@click.option("--reason", "-r", default="", help="Why; stored in the stream's list of erasures.")
@click.option("--dry-run", is_flag=True, help="Only count the records.")
@click.option("--yes", "-y", "--force", "-f", "assume_yes", is_flag=True, help="Do not ask.")
@server_options
@debug_option
def erase(
    stream: str, ranges: list[tuple[int, int]], reason: str, dry_run: bool, assume_yes: bool
) -> ExitCode:
    """Erase records of STREAM, permanently.

    When the command ends, no reader gets one of these records any more, also after a restart. Their
    bytes stay in the files of the daemon until it rewrites them, and in backups and exports.
    Streams of a cluster cannot erase records yet.

    \b
    Examples:
      liftlog erase orders --offset 4711 --reason 'request 17'
      liftlog erase orders --offset 4711 --offset 5000-5999 --dry-run
    """
    style = output_format()
    with connect_to_server() as client:
        found = client.describe_stream(stream)
        erased = client.erase(stream, ranges, dry_run=True, incarnation=found.incarnation)
        what = f"{plural(erased.count, 'record')} of {printable(stream)}"
        if not dry_run and erased.count:
            if not assume_yes and not confirmed(f"Erase {what}?"):
                note("Nothing was erased.")
                return ExitCode.FAILED
            erased = client.erase(stream, ranges, reason=reason, incarnation=found.incarnation)
            what = f"{plural(erased.count, 'record')} of {printable(stream)}"
    if style != "table":
        write_object(_shown(stream, erased, dry_run), style)
    elif dry_run:
        say(f"{what} would be erased")
    else:
        say(f"{what} erased" + (f" ({erased.erasure_id})" if erased.erasure_id else ""))
    for first, end in erased.unreadable_ranges:
        note(f"offsets {first:,} to {end - 1:,} cannot be read, and are not erased")
    return ExitCode.FAILED if erased.unreadable_ranges else ExitCode.OK


def _shown(stream: str, erased: Erased, dry_run: bool) -> dict[str, object]:
    return {
        "name": stream,
        "dry_run": dry_run,
        "records": erased.count,
        "erasure": erased.erasure_id,
        "unreadable": [list(one) for one in erased.unreadable_ranges],
    }
