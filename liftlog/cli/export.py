"""`liftlog export`: a stream as a table of Parquet files or as a Delta table."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from liftlog.cli.exit_codes import ExitCode
from liftlog.cli.export_progress import ProgressBar
from liftlog.cli.options import (
    debug_option,
    duration_of,
    output_format,
    server_options,
    shared_value,
    want_json,
)
from liftlog.cli.output import print_pairs, write_object
from liftlog.cli.problems import Problem, warn
from liftlog.cli.text import plural, printable, show_size
from liftlog.errors import InvalidArgument, LeaseGone

if TYPE_CHECKING:
    from liftlog.spark.export.job import Engine, Summary
    from liftlog.spark.export.request import ExportRequest


@click.command()
@click.argument("stream")
@click.option(
    "--to",
    required=True,
    metavar="DIR",
    help="The table's own directory; made if it is not there. On a cluster one that driver and "
    "executors share. For Delta also a URL.",
)
@click.option(
    "--mode",
    type=click.Choice(["compacted", "append"]),
    help="compacted: the newest value of each key, deleted keys left out, and all records without "
    "a key. append: every record. Default: as the table is; compacted for a new one.",
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
    "--full",
    is_flag=True,
    help="Read the whole stream again and replace the table. Refused if the table has rows that "
    "the stream no longer has.",
)
@click.option(
    "--discard-rows",
    is_flag=True,
    help="With --full: replace the table even if rows are lost by that.",
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
@click.option("--no-headers", is_flag=True, help="Leave out the column headers.")
@click.option(
    "--name",
    metavar="NAME",
    help="The checkpoint that shows how far the export is: export-NAME. Default: the last part of "
    "--to.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be exported, and change nothing.")
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
    help="How long files of superseded snapshots stay for those who are reading them. Default: 1h.",
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
    help="About so much of the log is read by one task, and so much of the table merged by one, "
    "such as 128MiB. Default: 256MiB (128MiB to append) and 32MiB.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --output json.")
@server_options
@debug_option
def export(
    stream: str,
    to: str,
    mode: Any,
    format_name: Any,
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

    The first run exports all of STREAM, each further one what came since.

    Needs Spark: pip install 'liftlog[spark]', and Java 17 or newer. What is exported ends at the
    high watermark of the start. A run either adds all of it to the table or nothing; run it again
    after a failure. If another export into the same directory was quicker, the exit code is 6.

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
    from liftlog.spark.export.request import ExportRequest

    request = ExportRequest(
        stream=stream,
        to=to,
        mode=mode,
        format=format_name,
        full=full,
        discard_rows=discard_rows,
        optimize=optimize,
        headers=not no_headers,
        skip_lost=skip_lost,
        name=name,
        dry_run=dry_run,
        keep_seconds=duration_of("--keep", keep),
        lease_seconds=max(1, round(duration_of("--lease", lease))),
        partition_bytes=_size("--partition-size", partition_size),
    )
    with _token_file(token_file, master) as path:
        summary = _run(request, master, path)
    if style == "table":
        _print(summary, dry_run=dry_run)
    else:
        write_object(dataclasses.asdict(summary), style)


def _run(request: ExportRequest, master: str | None, token_file: str | None) -> Summary:
    from liftlog.cli.options import DEFAULT_SERVER
    from liftlog.spark.export.job import ExportJob
    from liftlog.spark.export.session import open_session
    from liftlog.spark.options import parse_options

    options = {
        "stream": request.stream,
        "server": str(shared_value("server", "LIFTLOG_SERVER") or DEFAULT_SERVER),
        "tokenFile": token_file,
        "nkeyFile": _absolute(shared_value("nkey", "LIFTLOG_NKEY")),
        "tlsCaFile": shared_value("tls_ca", "LIFTLOG_TLS_CA"),
    }
    if shared_value("tls_cert", "LIFTLOG_TLS_CERT"):
        raise InvalidArgument(
            "an export cannot show a client certificate: its tasks run on other hosts",
            hint="use --token-file or --nkey",
        )
    given = {name: value for name, value in options.items() if value is not None}

    with ProgressBar() as bar:

        def engine() -> Engine:
            from liftlog.spark.export.engine import SparkEngine

            bar.tell("start", 0, 0)
            return SparkEngine(open_session(master))

        try:
            return ExportJob(request, parse_options(given), engine, tell=bar.tell).run()
        except LeaseGone as error:
            raise Problem(error.message, ExitCode.TRY_AGAIN, hint=error.hint) from error


def _print(summary: Summary, *, dry_run: bool) -> None:
    for text in summary.warnings:
        warn(text)
    span = f"[{summary.from_offset}, {summary.to_offset})"
    where = printable(summary.table)
    if dry_run:
        how = " into a new snapshot" if summary.full else ""
        click.echo(f"would export offsets {span}{how}: {printable(summary.reason)}")
        print_pairs(_losses(summary))
        return
    if not summary.committed:
        click.echo(f"{where} is up to date: it ends at offset {summary.to_offset}")
        print_pairs(_losses(summary))
        return
    rows = [
        ("stream", printable(summary.stream)),
        ("table", f"{where} ({summary.format}, {summary.mode})"),
        ("offsets", f"{span}, {printable(summary.reason)}"),
        (
            "written",
            f"{plural(summary.rows, 'row')} in {plural(summary.files, 'file')}, "
            f"{show_size(summary.size_bytes)}",
        ),
        (
            "snapshot",
            f"{summary.sequence}: {plural(summary.table_rows, 'row')} in "
            f"{plural(summary.table_files, 'file')}, {show_size(summary.table_bytes)}",
        ),
        ("checkpoint", summary.checkpoint),
        ("seconds", f"{summary.seconds:.1f}"),
    ]
    print_pairs(rows + _losses(summary))


def _losses(summary: Summary) -> list[tuple[str, str]]:
    rows = [("discards", printable(summary.discards))] if summary.discards else []
    rows += [
        ("lost", f"[{one.first_offset}, {one.next_offset}): {printable(one.reason)}")
        for one in summary.lost
    ]
    if summary.keys_in_doubt:
        keys = plural(summary.keys_in_doubt, "key")
        rows.append(("in doubt", f"{keys}: a newer value may be among what was lost"))
    return rows


def _absolute(path: str | None) -> str | None:
    """Tasks have working directories of their own."""
    return None if path is None else str(Path(path).absolute())


@contextmanager
def _token_file(given: str | None, master: str | None) -> Iterator[str | None]:
    """A path for the tasks: a token itself would be seen in Spark's plans."""
    import os

    from liftlog.spark.export.session import is_local

    path = given or os.environ.get("LIFTLOG_TOKEN_FILE")
    token = shared_value("token", "LIFTLOG_TOKEN")
    if path is not None or token is None:
        yield _absolute(path)
        return
    if not is_local(master):
        raise InvalidArgument(
            "on a cluster a token has to be in a file that every host has",
            hint="use --token-file instead of --token and LIFTLOG_TOKEN",
        )
    with tempfile.NamedTemporaryFile(prefix="liftlog-", suffix=".token") as file:  # for us alone
        file.write(str(token).encode())
        file.flush()
        yield file.name


def _size(option: str, text: str | None) -> int | None:
    from liftlog.settings.units import parse_size

    try:
        size = None if text is None else parse_size(text)
    except ValueError as error:
        raise InvalidArgument(f"{option} {text}: {error}") from None
    if size is not None and size < 1:
        raise InvalidArgument(f"{option} {text}: more than nothing, please")
    return size
