"""`liftlog erase STREAM`: hides records of a stream from every reader, and may wait until their
bytes are gone."""

from __future__ import annotations

import os
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from acl.subjects import overlap_any, why_invalid
from liftlog.cli.erasing.erasures import wait_until_removed
from liftlog.cli.lib.command_groups import HELP, HELP_OPTIONS, Commands, Listed
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.options import (
    connect_to_server,
    debug_option,
    filter_options,
    output_format,
    server_options,
)
from liftlog.cli.lib.output import say, write_object
from liftlog.cli.lib.problems import confirmed, note
from liftlog.cli.lib.ranges import TIME_HELP, time_of
from liftlog.cli.lib.suggestions import complete_stream
from liftlog.cli.lib.text import plural, printable

if TYPE_CHECKING:
    from liftlog.client import Filter, SyncClient
    from liftlog.protocol.administration import Erased
    from liftlog.protocol.described import StreamInfo

_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?", re.ASCII)
_SEARCH_SECONDS = 600.0
"""Time limit of a request, in seconds. A search reads a large stream in several seconds, and waits
for the other readers."""


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


class Selected(NamedTuple):
    """The selection of the command line."""

    ranges: list[tuple[int, int]]
    subjects: tuple[str, ...]
    keys: tuple[str, ...]
    headers: tuple[str, ...]
    since: datetime | None
    until: datetime | None

    def filter(self) -> Filter | None:
        from liftlog.client import Filter

        if not (self.subjects or self.keys or self.headers):
            return None
        keys = [os.fsencode(key) for key in self.keys]  # the bytes that the shell passed
        return Filter(self.subjects or None, keys or None, self.headers or None)


class _Erase(Commands):
    """A group that takes the name of a stream for its command `records`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = (HELP, *HELP_OPTIONS, *self.aliases, *self.list_commands(ctx))
        if args and args[0] not in known:
            args = ["records", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=_Erase,
    name="erase",
    short_help="Erase records, list erasures, remove and prove them.",
    listed={
        "ls": Listed("liftlog.cli.erasing.erasures:list_erasures", "List erasures of STREAM."),
        "show": Listed(
            "liftlog.cli.erasing.erasures:show", "Show an erasure, and what is left of it."
        ),
        "remove": Listed(
            "liftlog.cli.erasing.erasures:remove", "Remove the bytes of erased records at once."
        ),
        "prove": Listed(
            "liftlog.cli.erasing.erasures:prove", "Search all files of STREAM for erased records."
        ),
    },
    aliases={"list": "ls", "info": "show"},
)
@server_options
@debug_option
def erase_commands() -> None:
    """Erase records of a stream, list the erasures, and prove that the bytes are removed.

    `liftlog erase STREAM` is short for `liftlog erase records STREAM`. `list` and `info` are
    aliases of `ls` and `show`.
    """


@erase_commands.command(name="records")
@click.argument("stream", shell_complete=complete_stream)
@click.option(
    "--offset",
    "ranges",
    multiple=True,
    callback=_ranges,
    metavar="N|FIRST-LAST",
    help="The offset of a record, or the first and the last offset of a range. Can be repeated.",
)
@filter_options
@click.option(
    "--since",
    callback=time_of,
    metavar="TIME",
    help=f"Only records from this time on: {TIME_HELP}.",
)
@click.option(
    "--until",
    callback=time_of,
    metavar="TIME",
    help="Only records before this time, in the same form as for --since.",
)
@click.option(
    "--now",
    is_flag=True,
    help="Remove the bytes from the files at once, and wait until they are removed.",
)
@click.option("--reason", "-r", default="", help="The reason, for the stream's list of erasures.")
@click.option("--dry-run", is_flag=True, help="Only count the records, and show where they are.")
@click.option("--yes", "-y", "--force", "-f", "assume_yes", is_flag=True, help="Do not ask.")
@server_options
@debug_option
def erase(
    stream: str,
    ranges: list[tuple[int, int]],
    subjects: tuple[str, ...],
    keys: tuple[str, ...],
    headers: tuple[str, ...],
    since: datetime | None,
    until: datetime | None,
    now: bool,
    reason: str,
    dry_run: bool,
    assume_yes: bool,
) -> ExitCode:
    """Erase records of STREAM, permanently.

    The command erases a record if all given options match it. It does not erase records that arrive
    after it has begun. When the command ends, no reader receives the erased records any more, even
    after a restart of the daemon. The bytes of the records stay in the files of the daemon until it
    rewrites these files. With --now it rewrites them at once, and the command waits for the end;
    after Ctrl-C the daemon continues. Backups and exports from before the erasure still contain the
    records. Streams of a cluster cannot erase records yet.

    \b
    Examples:
      liftlog erase records orders --offset 4711 --reason 'request 17'
      liftlog erase records orders --offset 4711 --offset 5000-5999 --dry-run
      liftlog erase records orders --subject 'orders.*.customer.17' --until 2026-01-31
      liftlog erase records orders --key 17 --header 'Source=shop' --now
    """
    wanted = Selected(ranges, subjects, keys, headers, since, until)
    if not any(wanted):
        raise click.UsageError(
            "Select records with --offset, --subject, --key, --header, --since or --until.",
            click.get_current_context(),
        )
    for pattern in subjects:
        if (problem := why_invalid(pattern)) is not None:
            raise click.BadParameter(f"{pattern!r}: {problem}", param_hint="--subject")
    style, left = output_format(), None
    with connect_to_server(request_timeout=_SEARCH_SECONDS) as client:
        found = client.describe_stream(stream)
        erased = _ask(client, wanted, found, dry_run=True)
        if style == "table":
            _preview(found, wanted, erased)
        if not dry_run and erased.count:
            what = f"{plural(erased.count, 'record')} of {printable(stream)}"
            if not assume_yes and not confirmed(f"Erase {what}?"):
                note("Nothing was erased.")
                return ExitCode.FAILED
            # Only the records of the preview: records that arrived later lie above `end_offset`.
            first = wanted._replace(ranges=_below(wanted.ranges, erased.end_offset))
            erased = _ask(client, first, found, reason=reason, now=now)
            if style == "table":
                what = f"{plural(erased.count, 'record')} of {printable(stream)}"
                say(f"{what} erased ({erased.erasure_id})")
            if now and erased.erasure_id:
                left = wait_until_removed(client, found.name, erased.erasure_id)
    if style != "table":
        write_object({**_shown(stream, erased, dry_run), "left": left}, style)
    for first_offset, end in erased.unreadable_ranges:
        note(f"offsets {first_offset:,} to {end - 1:,} cannot be read, and are not erased")
    return ExitCode.FAILED if erased.unreadable_ranges or left else ExitCode.OK


def _ask(
    client: SyncClient,
    wanted: Selected,
    found: StreamInfo,
    *,
    reason: str = "",
    dry_run: bool = False,
    now: bool = False,
) -> Erased:
    return client.erase(
        found.name,
        wanted.ranges,
        filter=wanted.filter(),
        since=wanted.since,
        until=wanted.until,
        reason=reason,
        dry_run=dry_run,
        now=now,
        incarnation=found.incarnation,
    )


def _below(ranges: list[tuple[int, int]], end: int) -> list[tuple[int, int]]:
    """Cut the ranges off at `end`. If there are no ranges, return one range of all offsets below
    `end`."""
    return [(low, min(high, end)) for low, high in ranges or [(0, end)] if low < end]


def _preview(found: StreamInfo, wanted: Selected, erased: Erased) -> None:
    """Print the records that would be erased."""
    name = printable(found.name)
    if not erased.count:
        say(f"No record of {name} matches; nothing is erased.")
        for hint in _why_none(found, wanted):
            note(hint)
        return
    first, last = erased.first_offset or 0, erased.last_offset or 0
    where = f"at offset {first:,}"
    if erased.count > 1:
        where = f"from offset {first:,} to {last:,}"
        if erased.range_count > 1:
            where = f"in {erased.range_count:,} ranges {where}"
    say(f"{plural(erased.count, 'record')} of {name} {where}")
    if erased.subjects:
        say(f"Subjects include: {', '.join(map(printable, erased.subjects))}")
    note("Backups still contain these records, and exports until their next run.")


def _why_none(found: StreamInfo, wanted: Selected) -> list[str]:
    """Return remarks on a selection without records."""
    hints = []
    start, end = found.log_start_offset, found.high_watermark
    if start == end:
        hints.append("The stream has no records.")
    elif wanted.ranges and all(low >= end or high <= start for low, high in wanted.ranges):
        hints.append(f"The stream has the offsets {start:,} to {end - 1:,}.")
    recorded = found.recorded_subjects
    shown = ", ".join(map(printable, recorded))
    hints += [
        f"The stream records {shown}, and no subject that matches {printable(pattern)}."
        for pattern in wanted.subjects
        if recorded and not overlap_any(recorded, (pattern,))
    ]
    return hints


def _shown(stream: str, erased: Erased, dry_run: bool) -> dict[str, Any]:
    return {
        "name": stream,
        "dry_run": dry_run,
        "records": erased.count,
        "erasure": erased.erasure_id,
        "first_offset": erased.first_offset,
        "last_offset": erased.last_offset,
        "ranges": erased.range_count,
        "subjects": erased.subjects,
        "unreadable": [list(one) for one in erased.unreadable_ranges],
    }
