"""The commands `liftlog group ls`, `info`, `seek` and `rm` for consumer groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from liftlog.cli.lib.command_groups import Commands
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.options import (
    connect_to_server,
    debug_option,
    output_format,
    quiet,
    server_options,
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
from liftlog.cli.lib.suggestions import complete_stream
from liftlog.cli.lib.text import plural, printable, show_time

if TYPE_CHECKING:
    from liftlog.client import GroupInfo

_HEADINGS = ("GROUP", "STREAM", "MEMBERS", "SLOTS", "LAG", "STORED")
_MEMBER_HEADINGS = ("MEMBER", "SLOTS", "LAG", "SESSION")


@click.group(
    cls=Commands,
    name="group",
    aliases={"list": "ls", "show": "info", "set": "seek", "delete": "rm"},
)
@server_options
@debug_option
def group_commands() -> None:
    """List, show, move and delete consumer groups.

    A group shares a stream among its members. Each member owns some slots of the stream, and each
    slot has an offset. `list`, `show`, `set` and `delete` are aliases of `ls`, `info`, `seek` and
    `rm`.
    """


@group_commands.command(name="ls")
@click.option("--stream", "-s", metavar="NAME", help="Only groups of this stream.")
@server_options
@debug_option
def list_groups(stream: str | None) -> None:
    """List consumer groups.

    LAG is the largest lag of a slot: the number of offsets from its offset to the end of the
    stream.

    \b
    Examples:
      liftlog group ls
      liftlog group ls --stream orders -o json
    """
    style = output_format()
    with connect_to_server() as client:
        found = client.list_groups(stream=stream)
    if quiet():
        write_lines([f"{printable(one.group)} {printable(one.stream)}" for one in found])
    elif style != "table":
        write_objects([one.to_wire() for one in found], style)
    elif found:
        rows = [
            (
                printable(one.group),
                printable(one.stream),
                str(len(one.members)),
                str(one.slot_count),
                _number(one.lag),
                show_time(one.time_ns),
            )
            for one in found
        ]
        print_table(_HEADINGS, rows, right=(2, 3, 4))
    else:
        note("There are no groups.")


@group_commands.command()
@click.argument("group")
@click.argument("stream", shell_complete=complete_stream)
@server_options
@debug_option
def info(group: str, stream: str) -> ExitCode:
    """Show GROUP of STREAM: its members and their progress.

    With `--output json` the output also has the owner and the offset of each slot. The exit code
    is 5 if the group does not exist.

    \b
    Examples:
      liftlog group info billing orders
      liftlog group info billing orders -o json | jq .offsets
    """
    style = output_format()
    with connect_to_server() as client:
        found = client.describe_group(group, stream)
    if found is None:
        return _missing(group, stream)
    if style != "table":
        write_object(found.to_wire(), style)
        return ExitCode.OK
    print_pairs(_facts(found))
    if found.members:
        rows = [
            (
                printable(str(one["name"])),
                str(one["slots"]),
                _number(one["lag"]),
                f"{one['session_ms'] / 1000:g} s",
            )
            for one in found.members
        ]
        say("")
        print_table(_MEMBER_HEADINGS, rows, right=(1, 2, 3))
    return ExitCode.OK


@group_commands.command()
@click.argument("group")
@click.argument("stream", shell_complete=complete_stream)
@click.argument("position", callback=position_of)
@click.option("--dry-run", "-n", is_flag=True, help="Show the change without making it.")
@click.option("--yes", "-y", "assume_yes", is_flag=True, help="Do not ask.")
@server_options
@debug_option
def seek(group: str, stream: str, position: Position, dry_run: bool, assume_yes: bool) -> ExitCode:
    """Make all slots of GROUP in STREAM continue at POSITION.

    POSITION is an offset, start, end, +100 (after the first 100), @TIME as in `liftlog consume
    --from`, or -100 (before the last 100). Write -- before a negative POSITION. Stop the members
    first. The command creates the group if it does not exist.

    \b
    Examples:
      liftlog group seek billing orders start --dry-run
      liftlog group seek billing orders start --yes
      liftlog group seek billing orders @-1h
    """
    with connect_to_server() as client:
        start = resolve_position(client, stream, position)
        offset = client.fetch(stream, start, max_bytes=1).header.offset
        who = f"{printable(group)} in {printable(stream)}"
        words = f"{who} continues at offset {offset:,}"
        if dry_run:
            say(f"{who} would continue at offset {offset:,}")
            return ExitCode.OK
        if not assume_yes and not confirmed(f"{words}. Do it?"):
            note("Nothing was changed.")
            return ExitCode.FAILED
        client.seek_group(group, stream, offset)
    say(words)
    return ExitCode.OK


@group_commands.command()
@click.argument("group")
@click.argument("stream", shell_complete=complete_stream)
@click.option("--yes", "-y", "--force", "-f", "assume_yes", is_flag=True, help="Do not ask.")
@server_options
@debug_option
def rm(group: str, stream: str, assume_yes: bool) -> ExitCode:
    """Delete GROUP of STREAM, with its offsets.

    The group must not have members. The exit code is 5 if the group does not exist.

    \b
    Examples:
      liftlog group rm billing orders
      liftlog group rm billing orders --yes
    """
    with connect_to_server() as client:
        # The list includes groups of deleted streams.
        found = [one for one in client.list_groups(stream=stream) if one.group == group]
        if not found:
            return _missing(group, stream)
        words = f"{printable(group)} in {printable(stream)}: the group is deleted"
        if not assume_yes and not confirmed(f"{words}. Do it?"):
            note("Nothing was changed.")
            return ExitCode.FAILED
        client.remove_group(group, stream)
    say(words)
    return ExitCode.OK


def _missing(group: str, stream: str) -> ExitCode:
    note(f"There is no group {printable(group)} in {printable(stream)}.")
    return ExitCode.NOT_FOUND


def _number(lag: int | None) -> str:
    return "" if lag is None else f"{lag:,}"


def _facts(found: GroupInfo) -> list[tuple[str, str]]:
    free = found.owners.count("")
    facts = [
        ("group", found.group),
        ("stream", found.stream),
        ("slots", f"{found.slot_count}, {plural(free, 'slot')} without owner"),
        ("lag", _number(found.lag)),
        ("generation", str(found.generation)),
        ("stored", show_time(found.time_ns)),
        ("created by", found.principal),
        ("incarnation", found.incarnation),
    ]
    return [(label, printable(text)) for label, text in facts if text]
