"""`liftlog stream update`, `pause`, `resume`, `read-only` and `truncate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from liftlog.cli.exit_codes import ExitCode
from liftlog.cli.options import (
    connect_to_server,
    debug_option,
    output_format,
    parse_assignments,
    server_options,
)
from liftlog.cli.output import print_table, write_object
from liftlog.cli.problems import confirmed, note, warn
from liftlog.cli.suggestions import complete_stream
from liftlog.cli.text import plural, printable, show_size

if TYPE_CHECKING:
    from liftlog.client import Removal, StreamInfo, StreamUpdate


@click.command()
@click.argument("name", shell_complete=complete_stream)
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting to change, with the keys of the YAML file: --set retention.max_age=7d. "
    "KEY=null restores the default. Can be repeated.",
)
@click.option("--dry-run", "-n", is_flag=True, help="Show what would change and be deleted.")
@click.option(
    "--yes", "-y", "assume_yes", is_flag=True, help="Do not ask before records are deleted."
)
@server_options
@debug_option
def update(name: str, assignments: tuple[str, ...], dry_run: bool, assume_yes: bool) -> ExitCode:
    """Change settings of the stream NAME while it runs.

    Other settings stay as they are. subject, queue_group and initial_offset cannot be changed. If
    the new limits make retention delete records at once, the command asks first.

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
                _show_update(found)
                if not confirmed(f"Change {printable(name)} and delete these records?"):
                    note("Nothing was changed.")
                    return ExitCode.FAILED
            found = client.update_stream(name, settings, allow_deletion=deletes)
    if style == "table":
        _show_update(found)
    else:
        write_object(_update_object(found), style)
    for text in found.info.warnings:
        warn(text)
    return ExitCode.OK


def _show_update(found: StreamUpdate) -> None:
    name = printable(found.info.name)
    if not found.differences:
        click.echo(f"{name} already has these settings")
        return
    click.echo(f"{name} would change:" if found.dry_run else f"{name} updated:")
    rows = [
        (
            printable(str(one.get("setting"))),
            _value(one.get("existing")),
            _value(one.get("requested")),
        )
        for one in found.differences
    ]
    print_table(("SETTING", "OLD", "NEW"), rows)
    if found.removal is not None and found.removal.records:
        click.echo(_removal_words(found.removal))


def _value(value: Any) -> str:
    if value is None:
        return "null"
    return printable(str(value).lower() if isinstance(value, bool) else str(value))


def _removal_words(removal: Removal) -> str:
    """What the next run of retention deletes."""
    return (
        f"retention deletes up to {plural(removal.records, 'record')} below offset "
        f"{removal.log_start_offset}: {plural(removal.segments, 'segment')}, "
        f"{show_size(removal.size_bytes)}"
    )


def _update_object(found: StreamUpdate) -> dict[str, Any]:
    return {
        "name": found.info.name,
        "dry_run": found.dry_run,
        "differences": found.differences,
        "removal": None if found.removal is None else found.removal.to_wire(),
        "stream": found.info.to_wire(),
    }


@click.command()
@click.argument("name", shell_complete=complete_stream)
@server_options
@debug_option
def pause(name: str) -> None:
    """Refuse new messages of the stream NAME until `resume`.

    Publishers that wait for an ack get a refusal; messages without a reply subject are counted and
    lost. When the command returns, all earlier messages are committed. A restart does not end the
    pause.

    \b
    Example:
      liftlog stream pause orders
    """
    with connect_to_server() as client:
        _show(client.pause_stream(name), "paused")


@click.command()
@click.argument("name", shell_complete=complete_stream)
@server_options
@debug_option
def resume(name: str) -> None:
    """Make the stream NAME record messages again after `pause`.

    A read-only stream stays read-only: see `liftlog stream read-only NAME --off`.

    \b
    Example:
      liftlog stream resume orders
    """
    with connect_to_server() as client:
        _show_recording(client.resume_stream(name), "resumed")


@click.command(name="read-only")
@click.argument("name", shell_complete=complete_stream)
@click.option("--off", is_flag=True, help="Record messages again.")
@server_options
@debug_option
def read_only(name: str, off: bool) -> None:
    """Refuse new messages of the stream NAME permanently.

    --off makes the stream record messages again.

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
    """`done` undid one reason to refuse messages; another may be left."""
    left = [way for switch, way in _WAY_BACK.items() if found.settings.get(switch)]
    _show(found, done if left else "records again")
    name = printable(found.name)
    for way in left:
        warn(f"{name} still refuses messages: {way.format(name=name)}")


def _show(found: StreamInfo, done: str) -> None:
    style = output_format()
    if style == "table":
        click.echo(f"{printable(found.name)} {done} ({found.state})")
    else:
        write_object(found.to_wire(), style)


@click.command()
@click.argument("name", shell_complete=complete_stream)
@click.argument("offset", type=click.IntRange(min=0))
@click.option("--dry-run", "-n", is_flag=True, help="Show what would be deleted.")
@click.option("--yes", "-y", "assume_yes", is_flag=True, help="Do not ask.")
@server_options
@debug_option
def truncate(name: str, offset: int, dry_run: bool, assume_yes: bool) -> ExitCode:
    """Delete the records below OFFSET, permanently.

    Refused while a lease covers any of them.

    \b
    Examples:
      liftlog stream truncate orders 120000 --dry-run
      liftlog stream truncate orders 120000 --yes
    """
    style = output_format()
    with connect_to_server() as client:
        found = client.describe_stream(name)
        count = max(0, min(offset, found.high_watermark) - found.log_start_offset)
        what = f"{plural(count, 'record')} of {printable(name)} below offset {offset}"
        if not dry_run:
            if count and not assume_yes and not confirmed(f"Delete up to {what}?"):
                note("Nothing was deleted.")
                return ExitCode.FAILED
            found = client.truncate_prefix(name, offset, incarnation=found.incarnation)
    if style != "table":
        write_object({"name": name, "dry_run": dry_run, "records": count, **_bounds(found)}, style)
    elif dry_run:
        click.echo(f"up to {what} would be deleted")
    elif not count:
        click.echo(
            f"{printable(name)} has no records below offset {offset}: nothing was deleted; it "
            f"begins at offset {found.log_start_offset}"
        )
    else:
        click.echo(f"up to {what} deleted; it begins at offset {found.log_start_offset}")
    return ExitCode.OK


def _bounds(found: StreamInfo) -> dict[str, int]:
    return {
        "log_start_offset": found.log_start_offset,
        "high_watermark": found.high_watermark,
        "size_bytes": found.size_bytes,
    }
