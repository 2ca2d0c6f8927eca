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
    help="The directory of the table; created if it does not exist. On a cluster, driver and "
    "executors must share it. For Delta it may be a URL.",
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
    help="How a compacted table changes. --copy-on-write: each run writes the files with changed "
    "keys again; the files are the table. --merge-on-read: it writes only what changed, readers "
    "leave out replaced rows, and now and then a run folds the changes in. For Parquet tables. "
    "Default: as the table is; copy on write for a new one.",
)
@click.option(
    "--full",
    is_flag=True,
    help="Read the whole stream again and replace the table. Refused if the table has rows that "
    "the stream no longer has.",
)
@click.option(
    "--discard-rows",
    is_flag=True,
    help="With --full: replace the table even if that loses rows.",
)
@click.option(
    "--optimize",
    is_flag=True,
    help="Merge small files into few large ones; no row is dropped. For Parquet tables.",
)
@click.option(
    "--skip-lost",
    is_flag=True,
    help="Continue after records that are damaged, or that retention removed before they were "
    "exported. The manifest and the output list them, and count the keys whose newest value may "
    "be among them.",
)
@click.option("--no-headers", is_flag=True, help="Omit the column headers.")
@click.option(
    "--name",
    metavar="NAME",
    help="The checkpoint that shows how far the export is: export-NAME. Default: the last part of "
    "--to.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be exported, and change nothing.")
@click.option(
    "--master",
    metavar="URL",
    help="Where Spark runs: local[N], spark://HOST:PORT, yarn. Default: all cores of this host.",
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="File with the token, on this host and on every executor's. [env: LIFTLOG_TOKEN_FILE]",
)
@click.option(
    "--keep",
    default="1h",
    metavar="DURATION",
    help="How long files of old snapshots are kept for their readers. Default: 1h.",
)
@click.option(
    "--lease",
    default="120s",
    metavar="DURATION",
    help="How long the daemon holds the range if this process dies or cannot reach it. "
    "Default: 120s.",
)
@click.option(
    "--partition-size",
    metavar="SIZE",
    help="Approximate size of the part of the log that one task reads, and of the table that one "
    "task merges, such as 128MiB. Default: 256MiB (128MiB to append) and 32MiB.",
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

    The first run exports all of STREAM, each later run the new records.

    Needs Spark: pip install 'liftlog[spark]', and Java 17 or newer. The export ends at the
    high watermark when the run starts. A run adds either all of it to the table or nothing; after
    a failure, run it again. If another export into the same directory finishes first, the exit code
    is 6.

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
