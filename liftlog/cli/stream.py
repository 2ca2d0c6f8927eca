"""`liftlog stream`: create, ls, info, compact, rm."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from liftlog.cli.compaction import describe_compaction, describe_last_pass
from liftlog.cli.exit_codes import ExitCode
from liftlog.cli.groups import Commands
from liftlog.cli.options import connect_to_server, debug_option, output_format, server_options
from liftlog.cli.output import print_pairs, print_table, write_object, write_objects
from liftlog.cli.problems import note, warn
from liftlog.cli.stream_settings import parse_assignments
from liftlog.cli.text import plural, printable, show_size, show_time

if TYPE_CHECKING:
    from liftlog.client import StreamInfo


@click.group(
    cls=Commands, name="stream", aliases={"list": "ls", "delete": "rm", "describe": "info"}
)
@server_options
@debug_option
def stream_commands() -> None:
    """Create, list, describe, compact and delete streams.

    `list`, `describe` and `delete` are other names of `ls`, `info` and `rm`.
    """


@stream_commands.command()
@click.argument("name")
@click.option(
    "--subject", "-s", metavar="SUBJECT", help="NATS subject to record, for example orders.>"
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
def create(name: str, subject: str | None, assignments: tuple[str, ...]) -> None:
    """Create the stream NAME.

    Returns once NATS has confirmed the subscription: what is published from then on is recorded.
    Creating a stream again with the same settings changes nothing; with others it is refused.
    """
    settings = parse_assignments(assignments)
    if subject is not None:
        settings["subject"] = subject
    if "subject" not in settings:
        raise click.UsageError(
            "Say what to record: --subject SUBJECT.", click.get_current_context()
        )
    style = output_format()
    with connect_to_server() as client:
        info = client.create_stream(name, **settings)
    for text in info.warnings:
        warn(text)
    if style == "table":
        click.echo(f"{info.name} records {info.subject} ({info.state})")
    else:
        write_object(info.to_wire(), style)


@stream_commands.command(name="ls")
@server_options
@debug_option
def list_streams() -> None:
    """List the streams."""
    style = output_format()
    with connect_to_server() as client:
        infos = client.list_streams()
    if style != "table":
        write_objects([info.to_wire() for info in infos], style)
    elif infos:
        headings = (
            "NAME",
            "SUBJECT",
            "STATE",
            "RECORDS",
            "START",
            "END",
            "SIZE",
            "SEGMENTS",
            "ACKS",
        )
        print_table(headings, [_row(info) for info in infos], right=(3, 4, 5, 6, 7))
    else:
        note("There are no streams. Create one: liftlog stream create orders --subject 'orders.>'")


@stream_commands.command()
@click.argument("name")
@server_options
@debug_option
def info(name: str) -> None:
    """Show one stream: offsets, settings, losses, compaction."""
    style = output_format()
    with connect_to_server() as client:
        found = client.describe_stream(name)
    if style != "table":
        write_object(found.to_wire(), style)
        return
    print_pairs(_facts(found))
    for text in found.warnings:
        warn(text)


@stream_commands.command()
@click.argument("name")
@click.option("--wait", "-w", is_flag=True, help="Return when the pass is over.")
@server_options
@debug_option
def compact(name: str, wait: bool) -> None:
    """Compact the stream NAME now, whatever its dirty ratio.

    The active segment is rolled first. What is younger than the stream's dedupe_window or min_lag
    stays as it is.
    """
    style = output_format()
    with connect_to_server() as client:
        found = client.compact_stream(name, wait=wait)
    if style != "table":
        write_object(found.to_wire(), style)
    elif wait:
        click.echo(f"{printable(name)} compacted: {describe_last_pass(found.compaction)}")
    else:
        click.echo(f"{printable(name)} is compacted next (liftlog stream info {printable(name)})")


@stream_commands.command()
@click.argument("name")
@click.option("--yes", "-y", "assume_yes", is_flag=True, help="Do not ask.")
@server_options
@debug_option
def rm(name: str, assume_yes: bool) -> ExitCode:
    """Delete the stream NAME and all its records, for ever."""
    style = output_format()
    with connect_to_server() as client:
        found = client.describe_stream(name)
        if not assume_yes and not _confirmed(found):
            note("Nothing was deleted.")
            return ExitCode.FAILED
        client.delete_stream(name)
    if style == "table":
        click.echo(f"{name} deleted ({_count(found)}, {show_size(found.size_bytes)})")
    else:
        write_object({"name": name, "deleted": True, "records": _records(found)}, style)
    return ExitCode.OK


def _confirmed(found: StreamInfo) -> bool:
    if not sys.stdin.isatty():
        raise click.UsageError(
            "There is no terminal to ask on; say --yes to delete it.", click.get_current_context()
        )
    question = f"Delete {found.name} with {_count(found)} ({show_size(found.size_bytes)})?"
    return click.confirm(question, err=True)


def _records(found: StreamInfo) -> int:
    """As many offsets as readers can reach; after compaction some of them hold nothing."""
    return max(found.high_watermark - found.log_start_offset, 0)


def _count(found: StreamInfo) -> str:
    return plural(_records(found), "record")


def _row(found: StreamInfo) -> tuple[str, ...]:
    return (
        printable(found.name),
        printable(found.subject),
        printable(found.state) + (" !" if found.warnings or found.quarantined else ""),
        f"{_records(found):,}",
        str(found.log_start_offset),
        str(found.high_watermark),
        show_size(found.size_bytes),
        str(found.segment_count),
        printable(f"{found.acks}, {found.durability}" if found.durability else found.acks),
    )


def _facts(found: StreamInfo) -> list[tuple[str, str]]:
    records = _count(found)
    if _records(found):
        if found.compaction.get("cleaned_below"):
            records = f"at most {records}"
        records += f", offsets {found.log_start_offset} to {found.high_watermark - 1}"
    facts = [
        ("name", found.name),
        ("subject", found.subject),
        ("queue group", found.queue_group or ""),
        ("state", found.state),
        ("origin", found.origin),
        ("records", records),
        ("log start offset", str(found.log_start_offset)),
        ("high watermark", str(found.high_watermark)),
        ("log end offset", str(found.log_end_offset)),
        ("size", f"{show_size(found.size_bytes)} in {plural(found.segment_count, 'segment')}"),
        ("leader epoch", str(found.leader_epoch)),
        ("incarnation", found.incarnation),
        ("compaction", "\n".join(describe_compaction(found.compaction))),
        ("settings", "\n".join(f"{key}: {value}" for key, value in _flat(found.settings))),
        ("possible losses", "\n".join(map(_loss, found.possible_losses))),
        ("damaged", "\n".join(map(_range, found.quarantined))),
    ]
    return [(label, printable(text, keep_newlines=True)) for label, text in facts if text]


def _flat(settings: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for key, value in settings.items():
        if isinstance(value, dict):
            found += _flat(value, f"{prefix}{key}.")
        elif value is not None:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            found.append((f"{prefix}{key}", text))
    return found


def _loss(event: dict[str, Any]) -> str:
    moment = event.get("time_ns")
    when = show_time(moment) if isinstance(moment, int) else "?"
    return f"at offset {event.get('offset', '?')}, {when}: {event.get('reason', '?')}"


def _range(bad: dict[str, Any]) -> str:
    first, following = bad.get("first_offset"), bad.get("next_offset")
    last = following - 1 if isinstance(following, int) else "?"
    return f"offsets {first} to {last}: {bad.get('reason', '?')}"
