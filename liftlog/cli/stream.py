"""`liftlog stream`: creates, lists, changes and deletes streams."""

from __future__ import annotations

import shlex
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import click

from liftlog.cli.lease import lease_commands
from liftlog.cli.lib.command_groups import Commands
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.options import (
    connect_to_server,
    debug_option,
    output_format,
    parse_assignments,
    quiet,
    server_options,
)
from liftlog.cli.lib.output import (
    print_pairs,
    say,
    write_lines,
    write_object,
    write_objects,
)
from liftlog.cli.lib.problems import confirmed, note, warn
from liftlog.cli.lib.ranges import Position, offset_at, position_of
from liftlog.cli.lib.setting_options import SettingsCommand
from liftlog.cli.lib.suggestions import complete_stream
from liftlog.cli.lib.text import plural, printable, show_size
from liftlog.cli.stream_words import (
    count_of,
    describe_pass,
    facts_of,
    is_troubled,
    print_streams,
    show_update,
    update_object,
)
from liftlog.names import is_stream_name

if TYPE_CHECKING:
    from liftlog.client import StreamInfo

_LOOK_SECONDS = 3.0  # an operator needs the reason soon if no node leads the stream


@click.group(
    cls=Commands,
    name="stream",
    aliases={
        "list": "ls",
        "report": "ls",
        "find": "ls",
        "add": "create",
        "new": "create",
        "edit": "update",
        "describe": "info",
        "show": "info",
        "state": "info",
        "delete": "rm",
        "purge": "truncate",
        "seal": "read-only",
    },
)
@server_options
@debug_option
def stream_commands() -> None:
    """Create, list, describe, change, lease and delete streams.

    These commands also have other names: `add`, `list` and `report`, `edit`, `view`, `purge`,
    `describe`, `delete`.
    """


@stream_commands.command(cls=SettingsCommand)
@click.argument("name")
@click.option(
    "--subject",
    "--subjects",
    "-s",
    "subjects",
    multiple=True,
    metavar="SUBJECT",
    help="NATS subject to record, for example orders.> Can be repeated.",
)
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the stream, with the keys of the YAML file: --set retention.max_age=7d. "
    "Can be repeated.",
)
@server_options
@debug_option
def create(name: str, subjects: tuple[str, ...], assignments: tuple[str, ...]) -> None:
    """Create the stream NAME.

    The command ends when NATS has confirmed the subscription. After this, the stream records all
    messages on its subjects. If the stream exists with the same settings, nothing changes. If it
    exists with other settings, the daemon refuses the command.

    \b
    Examples:
      liftlog stream create orders --subject 'orders.>'
      liftlog stream create prices -s 'prices.*' --set retention.max_age=7d --set compression=zstd
      liftlog stream create latest -s 'state.>' --set compaction.min_dirty_ratio=0.2
      liftlog stream create sales -s 'orders.>' -s 'invoices.*.sent'
    """
    settings = parse_assignments(assignments)
    if subjects:
        settings["subject"] = list(subjects)
    if "subject" not in settings:
        raise click.UsageError(
            "--subject SUBJECT is required: what to record.", click.get_current_context()
        )
    style = output_format()
    with connect_to_server() as client:
        info = client.create_stream(name, **settings)
    for text in info.warnings:
        warn(text)
    if style == "table":
        say(printable(f"{info.name} records {info.subject} ({info.state})"))
    else:
        write_object(info.to_wire(), style)


@stream_commands.command(name="ls")
@click.argument("pattern", required=False, shell_complete=complete_stream)
@click.option(
    "--subject",
    "-s",
    metavar="SUBJECT",
    help="Only streams that record this subject, or a subject that this pattern matches.",
)
@click.option(
    "--state",
    "states",
    multiple=True,
    metavar="STATE",
    help="Only streams in this state, for example paused. Can be repeated for streams in one of "
    "several states.",
)
@click.option(
    "--troubled",
    is_flag=True,
    help="Only streams with warnings, damage or possible losses, and streams that record nothing.",
)
@server_options
@debug_option
def list_streams(
    pattern: str | None, subject: str | None, states: tuple[str, ...], troubled: bool
) -> None:
    """List all streams, or the streams whose names match PATTERN.

    \b
    Examples:
      liftlog stream ls
      liftlog stream ls 'orders*' --state paused --state read-only
      liftlog stream ls --subject orders.eu.new -q
      liftlog stream ls --fields name,high_watermark,settings.retention.max_age
    """
    style = output_format()
    with connect_to_server() as client:
        infos = client.list_streams() if subject is None else client.streams_for(subject)
    wanted = [
        info
        for info in infos
        if (pattern is None or fnmatchcase(info.name, pattern))
        and (not states or info.state in states)
        and (not troubled or is_troubled(info))
    ]
    if quiet():
        write_lines([printable(info.name) for info in wanted])
    elif style != "table":
        write_objects([info.to_wire() for info in wanted], style)
    elif wanted:
        print_streams(wanted)
    elif infos:
        note(f"None of {plural(len(infos), 'stream')} matches.")
        if pattern is not None and not is_stream_name(pattern.replace("*", "x")):
            note(f"The streams that record a subject: liftlog stream for {shlex.quote(pattern)}")
    elif subject is not None:
        note(f"No stream records {printable(subject)}.")
    else:
        note("There are no streams. Create one: liftlog stream create orders --subject 'orders.>'")


@stream_commands.command()
@click.argument("name", shell_complete=complete_stream)
@server_options
@debug_option
def info(name: str) -> None:
    """Show one stream: offsets, settings, losses, compaction.

    \b
    Examples:
      liftlog stream info orders
      liftlog stream info orders -o json | jq .high_watermark
    """
    style = output_format()
    with connect_to_server(reconnect_for=_LOOK_SECONDS) as client:
        found = client.describe_stream(name)
    if style != "table":
        write_object(found.to_wire(), style)
        return
    print_pairs(facts_of(found))
    for text in found.warnings:
        warn(text)


@stream_commands.command(name="for")
@click.argument("subject")
@server_options
@debug_option
def streams_for(subject: str) -> None:
    """List the streams that record SUBJECT.

    With a pattern, list the streams that record any subject that matches it.

    \b
    Examples:
      liftlog stream for orders.eu.new
      liftlog stream for 'orders.*.new'
    """
    style = output_format()
    with connect_to_server() as client:
        infos = client.streams_for(subject)
    if style != "table":
        write_objects([info.to_wire() for info in infos], style)
    elif infos:
        print_streams(infos)
    else:
        note(f"No stream records {printable(subject)}.")


@stream_commands.command(cls=SettingsCommand)
@click.argument("name", shell_complete=complete_stream)
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting to change, with the keys of the YAML file: --set retention.max_age=7d. "
    "KEY=null restores the default. Can be repeated.",
)
@click.option(
    "--dry-run", "-n", is_flag=True, help="Show the changes and the records that would be deleted."
)
@click.option(
    "--yes", "-y", "assume_yes", is_flag=True, help="Do not ask before records are deleted."
)
@server_options
@debug_option
def update(name: str, assignments: tuple[str, ...], dry_run: bool, assume_yes: bool) -> ExitCode:
    """Change settings of the stream NAME while it runs.

    Other settings do not change. You cannot change queue_group and initial_offset. If retention
    would delete records at once because of the new limits, the command asks first.

    \b
    Examples:
      liftlog stream update orders --set retention.max_age=7d --dry-run
      liftlog stream update orders --set retention.max_age=null
    """
    settings = parse_assignments(assignments)
    if not settings:
        raise click.UsageError(
            "--set KEY=VALUE is required: what to change.", click.get_current_context()
        )
    style = output_format()
    with connect_to_server() as client:
        found = client.update_stream(name, settings, dry_run=True)
        removal = found.removal
        deletes = bool(found.differences) and removal is not None and removal.records > 0
        if not dry_run:
            if deletes and not assume_yes:
                show_update(found)
                if not confirmed(f"Change {printable(name)} and delete these records?"):
                    note("Nothing was changed.")
                    return ExitCode.FAILED
            found = client.update_stream(name, settings, allow_deletion=deletes)
    if style == "table":
        show_update(found)
    else:
        write_object(update_object(found), style)
    if found.info.origin == "config" and found.differences:
        note(
            f"{printable(name)} comes from the configuration file. The change here applies, "
            "also after a restart, until the value there changes: change it there, too."
        )
    for text in found.info.warnings:
        warn(text)
    return ExitCode.OK


@stream_commands.command()
@click.argument("name", shell_complete=complete_stream)
@server_options
@debug_option
def pause(name: str) -> None:
    """Refuse new messages of the stream NAME until `resume`.

    Publishers that wait for an ack receive a refusal. The daemon does not store messages without a
    reply subject, but counts them. When the command ends, all earlier messages are committed. A
    restart does not end the pause.

    \b
    Example:
      liftlog stream pause orders
    """
    with connect_to_server() as client:
        _show(client.pause_stream(name), "paused")


@stream_commands.command()
@click.argument("name", shell_complete=complete_stream)
@server_options
@debug_option
def resume(name: str) -> None:
    """Make the stream NAME record messages again after `pause`.

    A read-only stream stays read-only. Use `liftlog stream read-only NAME --off` for it.

    \b
    Example:
      liftlog stream resume orders
    """
    with connect_to_server() as client:
        _show_recording(client.resume_stream(name), "resumed")


@stream_commands.command(name="read-only")
@click.argument("name", shell_complete=complete_stream)
@click.option("--off", is_flag=True, help="Record messages again.")
@server_options
@debug_option
def read_only(name: str, off: bool) -> None:
    """Refuse new messages of the stream NAME permanently.

    With --off the stream records messages again.

    \b
    Examples:
      liftlog stream read-only orders
      liftlog stream read-only orders --off
    """
    with connect_to_server() as client:
        found = client.set_read_only(name, not off)
    if off:
        _show_recording(found, "no longer read-only")
    else:
        _show(found, "read-only")


_WAY_BACK = {
    "paused": "it is paused: liftlog stream resume {name}",
    "read_only": "it is read-only: liftlog stream read-only {name} --off",
}


def _show_recording(found: StreamInfo, done: str) -> None:
    """Print the sentence `done`, which names the removed reason, and then the remaining reasons why
    the stream refuses messages."""
    left = [way for switch, way in _WAY_BACK.items() if found.settings.get(switch)]
    _show(found, done if left else "records again")
    name = printable(found.name)
    for way in left:
        warn(f"{name} still refuses messages: {way.format(name=name)}")


def _show(found: StreamInfo, done: str) -> None:
    style = output_format()
    if style == "table":
        say(f"{printable(found.name)} {done} ({found.state})")
    else:
        write_object(found.to_wire(), style)


@stream_commands.command()
@click.argument("name", shell_complete=complete_stream)
@click.argument("position", metavar="OFFSET", callback=position_of)
@click.option("--dry-run", "-n", is_flag=True, help="Show the records that would be deleted.")
@click.option("--yes", "-y", "--force", "-f", "assume_yes", is_flag=True, help="Do not ask.")
@server_options
@debug_option
def truncate(name: str, position: Position, dry_run: bool, assume_yes: bool) -> ExitCode:
    """Delete the records below OFFSET, permanently.

    OFFSET is a number, end (delete all records), @TIME (delete the records before this time) or
    -100 (delete all records except the last 100). Write -- before a negative number. The daemon
    refuses the command while a lease protects a record to delete.

    \b
    Examples:
      liftlog stream truncate orders 120000 --dry-run
      liftlog stream truncate orders @-7d --yes
      liftlog stream truncate orders end
    """
    style = output_format()
    with connect_to_server() as client:
        found = client.describe_stream(name)
        offset = offset_at(client, name, position)
        count = max(0, min(offset, found.high_watermark) - found.log_start_offset)
        what = f"{plural(count, 'record')} of {printable(name)} below offset {offset:,}"
        if not dry_run:
            if count and not assume_yes and not confirmed(f"Delete up to {what}?"):
                note("Nothing was deleted.")
                return ExitCode.FAILED
            found = client.truncate_prefix(name, offset, incarnation=found.incarnation)
    if style != "table":
        write_object({"name": name, "dry_run": dry_run, "records": count, **_bounds(found)}, style)
    elif dry_run:
        say(f"up to {what} would be deleted")
    elif not count:
        say(
            f"{printable(name)} has no records below offset {offset:,}: nothing was deleted; it "
            f"begins at offset {found.log_start_offset:,}"
        )
    else:
        say(f"up to {what} deleted; it begins at offset {found.log_start_offset:,}")
    return ExitCode.OK


def _bounds(found: StreamInfo) -> dict[str, int]:
    return {
        "log_start_offset": found.log_start_offset,
        "high_watermark": found.high_watermark,
        "size_bytes": found.size_bytes,
    }


stream_commands.add_command(lease_commands)


@stream_commands.command()
@click.argument("name", shell_complete=complete_stream)
@click.option("--wait", "-w", is_flag=True, help="Wait until the pass has finished.")
@server_options
@debug_option
def compact(name: str, wait: bool) -> None:
    """Compact the stream NAME now, regardless of its dirty ratio.

    The daemon first seals the active segment. It does not compact records that are younger than the
    stream's dedupe_window or min_lag.

    \b
    Example:
      liftlog stream compact state --wait
    """
    style = output_format()
    with connect_to_server() as client:
        before = client.describe_stream(name) if wait else None
        found = client.compact_stream(name, wait=wait)
    if style != "table":
        write_object(found.to_wire(), style)
    elif before is not None:
        done = describe_pass(before.compaction, found.compaction)
        say(f"{printable(name)} {printable(done)}")
    elif reason := found.compaction.get("reason"):
        say(f"{printable(name)} cannot be compacted now: {printable(reason)}")
    else:
        say(f"{printable(name)} will be compacted next (liftlog stream info {printable(name)})")


@stream_commands.command()
@click.argument("name", shell_complete=complete_stream)
@click.option(
    "--dry-run", "-n", is_flag=True, help="Show the data that would be deleted, and delete nothing."
)
@click.option("--yes", "-y", "--force", "-f", "assume_yes", is_flag=True, help="Do not ask.")
@server_options
@debug_option
def rm(name: str, dry_run: bool, assume_yes: bool) -> ExitCode:
    """Delete the stream NAME and all its records, permanently.

    \b
    Examples:
      liftlog stream rm orders --dry-run
      liftlog stream rm orders --yes
    """
    style = output_format()
    with connect_to_server() as client:
        found = client.describe_stream(name)
        question = f"Delete {found.name} with {count_of(found)} ({show_size(found.size_bytes)})?"
        if not dry_run:
            if not assume_yes and not confirmed(question):
                note("Nothing was deleted.")
                return ExitCode.FAILED
            client.delete_stream(name)
    if style == "table":
        done = "would be deleted" if dry_run else "deleted"
        say(f"{name} {done} ({count_of(found)}, {show_size(found.size_bytes)})")
    else:
        write_object({"name": name, "deleted": not dry_run, "records": found.records}, style)
    return ExitCode.OK
