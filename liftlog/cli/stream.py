"""`liftlog stream`: create, ls, info, for, compact, rm; with `stream_changes` and `lease`."""

from __future__ import annotations

import click

from liftlog.cli.exit_codes import ExitCode
from liftlog.cli.groups import Commands
from liftlog.cli.lease import lease_commands
from liftlog.cli.options import (
    connect_to_server,
    debug_option,
    output_format,
    parse_assignments,
    server_options,
)
from liftlog.cli.output import print_pairs, write_object, write_objects
from liftlog.cli.problems import confirmed, note, warn
from liftlog.cli.stream_changes import pause, read_only, resume, truncate, update
from liftlog.cli.stream_words import count_of, describe_pass, facts_of, print_streams
from liftlog.cli.suggestions import complete_stream
from liftlog.cli.text import printable, show_size


@click.group(
    cls=Commands, name="stream", aliases={"list": "ls", "delete": "rm", "describe": "info"}
)
@server_options
@debug_option
def stream_commands() -> None:
    """Create, list, describe, change, hold and delete streams.

    `list`, `describe` and `delete` are aliases of `ls`, `info` and `rm`.
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

    Returns once NATS has confirmed the subscription: everything published from then on is
    recorded. Creating a stream again with the same settings changes nothing; other settings are
    refused.

    \b
    Examples:
      liftlog stream create orders --subject 'orders.>'
      liftlog stream create prices -s 'prices.*' --set retention.max_age=7d --set compression=zstd
      liftlog stream create latest -s 'state.>' --set compaction.min_dirty_ratio=0.2
    """
    settings = parse_assignments(assignments)
    if subject is not None:
        settings["subject"] = subject
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
        click.echo(printable(f"{info.name} records {info.subject} ({info.state})"))
    else:
        write_object(info.to_wire(), style)


@stream_commands.command(name="ls")
@server_options
@debug_option
def list_streams() -> None:
    """List the streams.

    \b
    Examples:
      liftlog stream ls
      liftlog stream ls -o jsonl | jq -r 'select(.state != "attached").name'
    """
    style = output_format()
    with connect_to_server() as client:
        infos = client.list_streams()
    if style != "table":
        write_objects([info.to_wire() for info in infos], style)
    elif infos:
        print_streams(infos)
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
    with connect_to_server() as client:
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

    With a pattern: the streams that record any subject that matches it.

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


for command in (update, pause, resume, read_only, truncate, lease_commands):
    stream_commands.add_command(command)


@stream_commands.command()
@click.argument("name", shell_complete=complete_stream)
@click.option("--wait", "-w", is_flag=True, help="Wait until the pass has finished.")
@server_options
@debug_option
def compact(name: str, wait: bool) -> None:
    """Compact the stream NAME now, regardless of its dirty ratio.

    The active segment is rolled first. Records younger than the stream's dedupe_window or min_lag
    are not compacted.

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
        click.echo(f"{printable(name)} {printable(done)}")
    else:
        click.echo(
            f"{printable(name)} will be compacted next (liftlog stream info {printable(name)})"
        )


@stream_commands.command()
@click.argument("name", shell_complete=complete_stream)
@click.option(
    "--dry-run", "-n", is_flag=True, help="Show what would be deleted, and delete nothing."
)
@click.option("--yes", "-y", "assume_yes", is_flag=True, help="Do not ask.")
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
        click.echo(f"{name} {done} ({count_of(found)}, {show_size(found.size_bytes)})")
    else:
        write_object({"name": name, "deleted": not dry_run, "records": found.records}, style)
    return ExitCode.OK
