"""`liftlog export`: a stream as a table of Parquet files or as a Delta table."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from liftlog.cli.lib.command_groups import Command
from liftlog.cli.lib.options import (
    debug_option,
    duration_of,
    output_format,
    server_options,
    want_json,
)
from liftlog.cli.lib.output import write_object

_LAYOUTS: dict[bool | None, Any] = {None: None, True: "merge-on-read", False: "copy-on-write"}


@click.command(cls=Command)
@click.argument("stream")
@click.option(
    "--to",
    required=True,
    metavar="DIR",
    help="The directory of the table. It is created if it does not exist. On a Spark cluster, "
    "driver and executors must share it. For Delta it may be a URL.",
)
@click.option(
    "--mode",
    type=click.Choice(["compacted", "append"]),
    help="compacted: the newest value of each key, without deleted keys, and all records without "
    "a key. append: every record. Default: the mode of the table; compacted for a new table.",
)
@click.option(
    "--format",
    "format_name",
    type=click.Choice(["parquet", "delta"]),
    default="parquet",
    help="parquet: files and a manifest. delta: a Delta table (needs liftlog[delta]). Default: "
    "parquet.",
)
@click.option(
    "--merge-on-read/--copy-on-write",
    "on_read",
    default=None,
    help="The layout of a compacted table, only for Parquet. With --copy-on-write, each run writes "
    "the files with changed keys again. With --merge-on-read, each run writes only the changed "
    "rows, and readers omit replaced rows. From time to time, a run merges the changes into new "
    "files. Default: the layout of the table; copy on write for a new table.",
)
@click.option(
    "--full",
    is_flag=True,
    help="Read the whole stream again and replace the table. The command refuses this if the table "
    "has rows that the stream no longer has.",
)
@click.option(
    "--discard-rows",
    is_flag=True,
    help="With --full: replace the table even if rows are lost.",
)
@click.option(
    "--optimize",
    is_flag=True,
    help="Merge small files into few large files. All rows stay. Only for Parquet tables.",
)
@click.option(
    "--skip-lost",
    is_flag=True,
    help="Continue after records that are damaged, or that retention removed before the export. "
    "The manifest and the output list these records, and count the keys whose newest value may "
    "be lost.",
)
@click.option("--no-headers", is_flag=True, help="Omit the column headers.")
@click.option(
    "--name",
    metavar="NAME",
    help="Name of the export. Its progress is in the checkpoint export-NAME. Default: the last "
    "part of --to.",
)
@click.option(
    "--dry-run", is_flag=True, help="Show the records that would be exported, and change nothing."
)
@click.option(
    "--master",
    metavar="URL",
    help="The Spark master: local[N], spark://HOST:PORT, yarn. Default: all cores of this host.",
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="File with the token, on this host and on the host of every executor. [env: "
    "LIFTLOG_TOKEN_FILE]",
)
@click.option(
    "--keep",
    default="1h",
    metavar="DURATION",
    help="Time for which the command keeps files of old snapshots for their readers. Default: 1h.",
)
@click.option(
    "--lease",
    default="120s",
    metavar="DURATION",
    help="Time for which the daemon keeps the records if this process dies or cannot reach the "
    "daemon. Default: 120s.",
)
@click.option(
    "--partition-size",
    metavar="SIZE",
    help="Approximate size of the part of the log that one task reads, and of the part of the "
    "table that one task merges, such as 128MiB. Default: 256MiB (128MiB with --mode append) to "
    "read, and 32MiB to merge.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --output json.")
@server_options
@debug_option
def export(
    stream: str,
    to: str,
    mode: Any,
    format_name: Any,
    on_read: bool | None,
    full: bool,
    discard_rows: bool,
    optimize: bool,
    skip_lost: bool,
    no_headers: bool,
    name: str | None,
    dry_run: bool,
    master: str | None,
    token_file: str | None,
    keep: str,
    lease: str,
    partition_size: str | None,
    as_json: bool,
) -> None:
    """Export a stream as a table.

    The first run exports all of STREAM, and each later run exports the new records.

    The command needs Spark (pip install 'liftlog[spark]') and Java 17 or newer. The export ends at
    the high watermark at the start of the run. A run adds all its records to the table, or none of
    them. After a failure, run the command again. If another export into the same directory finishes
    first, the exit code is 6.

    \b
    Examples:
      liftlog export orders --to /lake/orders
      liftlog export orders --to /lake/history --mode append --dry-run
      liftlog export orders --to s3a://lake/orders --format delta --master spark://spark:7077
    """
    if as_json:
        want_json()
    style = output_format()
    from liftlog.spark.export.session import check_installed

    check_installed(delta=format_name == "delta", java=not dry_run)
    from liftlog.cli.exports import export_run
    from liftlog.spark.export.planning import ExportRequest

    request = ExportRequest(
        stream=stream,
        to=to,
        mode=mode,
        format=format_name,
        layout=_LAYOUTS[on_read],
        full=full,
        discard_rows=discard_rows,
        optimize=optimize,
        headers=not no_headers,
        skip_lost=skip_lost,
        name=name,
        dry_run=dry_run,
        keep_seconds=duration_of("--keep", keep),
        lease_seconds=max(1, round(duration_of("--lease", lease))),
        partition_bytes=export_run.size_of("--partition-size", partition_size),
    )
    with export_run.token_file(token_file, master) as path:
        summary = export_run.run(request, master, path)
    if style == "table":
        export_run.show(summary, dry_run=dry_run)
    else:
        write_object(dataclasses.asdict(summary), style)
