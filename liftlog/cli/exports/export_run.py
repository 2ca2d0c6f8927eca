"""The work of `liftlog export`: creates a job from the options, and prints its summary."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.options import DEFAULT_SERVER, shared_value
from liftlog.cli.lib.output import print_pairs
from liftlog.cli.lib.problems import Problem, note, warn
from liftlog.cli.lib.progress import ProgressBar
from liftlog.cli.lib.text import plural, printable, show_size
from liftlog.errors import InvalidArgument, LeaseGone
from liftlog.settings.units import parse_size
from liftlog.spark.export.job import ExportJob, Summary
from liftlog.spark.export.planning import ExportRequest
from liftlog.spark.export.session import is_local, open_session
from liftlog.spark.export.tasks import Engine
from liftlog.spark.options import parse_options


def run(request: ExportRequest, master: str | None, token_file: str | None) -> Summary:
    try:
        return _run(request, master, token_file)
    except KeyboardInterrupt:
        note("The table is whole. Run the export again to continue.")
        raise


def _run(request: ExportRequest, master: str | None, token_file: str | None) -> Summary:
    options = {
        "stream": request.stream,
        "server": str(shared_value("server", "LIFTLOG_SERVER") or DEFAULT_SERVER),
        "tokenFile": token_file,
        "nkeyFile": _absolute(shared_value("nkey", "LIFTLOG_NKEY")),
        "tlsCaFile": shared_value("tls_ca", "LIFTLOG_TLS_CA"),
    }
    if shared_value("tls_cert", "LIFTLOG_TLS_CERT"):
        raise InvalidArgument(
            "an export cannot use a client certificate: its tasks run on other hosts",
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


def show(summary: Summary, *, dry_run: bool) -> None:
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
        ("table", f"{where} ({summary.format}, {_kind(summary)})"),
        ("offsets", f"{span}, {printable(summary.reason)}"),
        (
            "written",
            f"{plural(summary.rows, 'row')} in {plural(summary.files, 'file')}, "
            f"{show_size(summary.size_bytes)}{_share(summary)}",
        ),
        (
            "snapshot",
            f"{summary.sequence}: {plural(summary.table_rows, 'row')} in "
            f"{plural(summary.table_files, 'file')}, {show_size(summary.table_bytes)}",
        ),
        *_erased(summary),
        ("checkpoint", summary.checkpoint),
        ("seconds", f"{summary.seconds:.1f}"),
    ]
    print_pairs(rows + _losses(summary))


def _kind(summary: Summary) -> str:
    on_read = summary.layout == "merge-on-read"
    return f"{summary.mode}, merged on read" if on_read else summary.mode


def _share(summary: Summary) -> str:
    """Return the share of the table that the run has written."""
    return f", {summary.written_share:.1%} of the table" if summary.table_bytes else ""


def _erased(summary: Summary) -> list[tuple[str, str]]:
    """Return a line about the rows of erased records."""
    if not summary.erased_rows:
        return []
    rows = plural(summary.erased_rows, "row")
    return [("erased", f"{rows} removed; the files of older snapshots still have them")]


def _losses(summary: Summary) -> list[tuple[str, str]]:
    rows = [("discards", printable(summary.discards))] if summary.discards else []
    rows += [
        ("lost", f"[{one.first_offset}, {one.next_offset}): {printable(one.reason)}")
        for one in summary.lost
    ]
    if summary.keys_in_doubt:
        keys = plural(summary.keys_in_doubt, "key")
        rows.append(("in doubt", f"{keys}: a newer value may be among the lost records"))
    return rows


def _absolute(path: str | None) -> str | None:
    """Return an absolute path, because tasks have working directories of their own."""
    return None if path is None else str(Path(path).absolute())


@contextmanager
def token_file(given: str | None, master: str | None) -> Iterator[str | None]:
    """Yield the path of a file with the token for the tasks, because the token itself would appear
    in Spark's plans."""

    path = given or os.environ.get("LIFTLOG_TOKEN_FILE")
    token = shared_value("token", "LIFTLOG_TOKEN")
    if path is not None or token is None:
        yield _absolute(path)
        return
    if not is_local(master):
        raise InvalidArgument(
            "on a cluster the token must be in a file on every host",
            hint="use --token-file instead of --token and LIFTLOG_TOKEN",
        )
    with tempfile.NamedTemporaryFile(prefix="liftlog-", suffix=".token") as file:  # owner only
        file.write(str(token).encode())
        file.flush()
        yield file.name


def size_of(option: str, text: str | None) -> int | None:

    try:
        size = None if text is None else parse_size(text)
    except ValueError as error:
        raise InvalidArgument(f"{option} {text}: {error}") from None
    if size is not None and size < 1:
        raise InvalidArgument(f"{option} {text}: the size must not be 0")
    return size
