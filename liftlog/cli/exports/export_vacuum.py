"""`liftlog export vacuum`: removes old snapshots of an exported table."""

from __future__ import annotations

import dataclasses

import click

from liftlog.cli.lib.command_groups import Command
from liftlog.cli.lib.options import debug_option, duration_of, output_format, output_option
from liftlog.cli.lib.output import write_object
from liftlog.cli.lib.text import plural, printable, show_size


@click.command(cls=Command)
@click.argument("table", metavar="PATH")
@click.option(
    "--keep",
    default="7d",
    metavar="DURATION",
    help="Keep a snapshot for this time after the next snapshot; in whole hours for a Delta "
    "table. Default: 7d.",
)
@click.option(
    "--keep-snapshots",
    type=click.IntRange(min=1),
    metavar="N",
    help="Keep the newest N snapshots, independently of their age; at least 1. Refused for Delta "
    "tables. Default: 2.",
)
@click.option(
    "--dry-run", is_flag=True, help="Show the files that would be removed, and change nothing."
)
@output_option
@debug_option
def export_vacuum(table: str, keep: str, keep_snapshots: int | None, dry_run: bool) -> None:
    """Remove old snapshots of an exported table.

    `liftlog export vacuum` is another form of this command. But `liftlog export vacuum --to DIR`
    exports a stream with the name vacuum.

    The command removes files that only removed snapshots need, and files of runs that were
    stopped. It prints the number of freed bytes. It needs neither the daemon nor Spark, and does
    not disturb an export that runs at the same time. Each export also removes such files, with its
    own --keep.

    \b
    Examples:
      liftlog export vacuum /lake/orders --dry-run
      liftlog export vacuum /lake/orders --keep 1d --keep-snapshots 10
    """
    if not table:
        raise click.BadParameter("it is empty: which table?", param_hint="PATH")
    style = output_format()
    seconds = duration_of("--keep", keep)
    from liftlog.spark.export.session import check_installed

    check_installed(delta="://" in table, java=False)
    from liftlog.spark.export.opening import vacuum

    done = vacuum(table, keep_seconds=seconds, keep_snapshots=keep_snapshots, dry_run=dry_run)
    if style != "table":
        write_object(dataclasses.asdict(done), style)
        return
    if dry_run:
        for path in done.paths:
            click.echo(printable(path))
    how = "would remove" if dry_run else "removed"
    entries = plural(len(done.paths), "file or directory", "files and directories")
    click.echo(f"{how} {entries}, {show_size(done.size_bytes)}")
