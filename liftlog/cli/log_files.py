"""`liftlog log`: verify and dump, which only read the files of a log; repair and reindex."""

from __future__ import annotations

from pathlib import Path

import click

from liftlog.cli.exit_codes import ExitCode
from liftlog.cli.groups import Commands
from liftlog.cli.options import debug_option, output_option

_DIRECTORY = click.Path(path_type=Path)


@click.group(cls=Commands, name="log", short_help="Look into the files of a log, and mend them.")
@output_option
@debug_option
def log_commands() -> None:
    """Look into the files of a log, without a daemon or beside a running one.

    DIR is a data directory (`data_dir`) or the directory of one stream in it. Only `repair` and
    `reindex` ever write there, and not beside a running daemon.
    """


@log_commands.command()
@click.argument("directory", metavar="DIR", type=_DIRECTORY)
@click.option(
    "--allow-known",
    is_flag=True,
    help="Exit with 0 if all that is lost was found and quarantined by a daemon before.",
)
@output_option
@debug_option
def verify(directory: Path, allow_known: bool) -> ExitCode:
    """Check every byte under DIR.

    Manifest, segments, batch headers, checksums, offsets. Exits with 8 if offsets are lost or
    files are damaged, and says which. What a running daemon is just writing is not damage.

    \b
    Examples:
      liftlog log verify /var/lib/liftlog
      liftlog log verify /var/lib/liftlog/streams/orders -o json
    """
    from liftlog.cli.log_reading import verify as run

    return run(directory, allow_known)


@log_commands.command()
@click.argument("directory", metavar="DIR", type=_DIRECTORY)
@click.option("--values", is_flag=True, help="Print the records, not only the batches.")
@click.option(
    "--from",
    "first_offset",
    type=click.IntRange(min=0),
    default=0,
    metavar="OFFSET",
    help="Begin with the batch that holds this offset.",
)
@click.option(
    "-n", "limit", type=click.IntRange(min=1), metavar="N", help="Stop after N batches or records."
)
@output_option
@debug_option
def dump(directory: Path, values: bool, first_offset: int, limit: int | None) -> ExitCode:
    """Print the batches under DIR, or with --values their records.

    Everything that is whole is printed, also what is not committed yet or lies below the log's
    start. With `--output jsonl` every line is a batch, with --values a record as `consume` prints
    it and its stream. Damage is told on stderr, and the exit code is 8.

    \b
    Examples:
      liftlog log dump /var/lib/liftlog/streams/orders
      liftlog log dump /var/lib/liftlog --values -o jsonl | jq -r .subject
    """
    from liftlog.cli.log_reading import dump as run

    return run(directory, values, first_offset, limit)


@log_commands.command()
@click.argument("directory", metavar="DIR", type=_DIRECTORY)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--yes", "-y", "assume_yes", is_flag=True, help="Do not ask.")
@click.option(
    "--subject",
    "-s",
    metavar="SUBJECT",
    help="NATS subject of the stream, where its settings are lost with its manifest.",
)
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the stream whose manifest is lost, as for `stream create`. Can be repeated.",
)
@output_option
@debug_option
def repair(
    directory: Path,
    dry_run: bool,
    assume_yes: bool,
    subject: str | None,
    assignments: tuple[str, ...],
) -> ExitCode:
    """Mend the log under DIR while no daemon uses it.

    Reads every byte and says what it would do, then asks. Damaged ranges are quarantined: readers
    are told which offsets are gone and read on behind them. A torn tail that was never acked is
    cut off. A lost manifest is made anew from the segments, as far as they prove it; its stream's
    settings have to be given then, by --subject and --set. No record that can be read is dropped.

    A copy of all that is changed or removed is kept in `repaired/` of the data directory. With
    --dry-run nothing is written, and the exit code is 8 if there is something to repair.

    \b
    Examples:
      liftlog log repair /var/lib/liftlog --dry-run
      liftlog log repair /var/lib/liftlog/streams/orders --subject 'orders.>' --yes
    """
    from liftlog.cli.log_repair import repair as run

    return run(directory, dry_run, assume_yes, subject, assignments)


@log_commands.command()
@click.argument("directory", metavar="DIR", type=_DIRECTORY)
@click.option("--dry-run", is_flag=True, help="Only report which indexes are missing or wrong.")
@click.option("--yes", "-y", "assume_yes", is_flag=True, help="Do not ask.")
@output_option
@debug_option
def reindex(directory: Path, dry_run: bool, assume_yes: bool) -> ExitCode:
    """Rebuild missing and wrong indexes under DIR.

    Compares the index of every sealed segment with the batch headers, reports the indexes that
    disagree, then asks. An index holds nothing that the segment does not, so no copy is kept. A
    daemon rebuilds an index that is missing or fails its check by itself; this command also finds
    indexes that are intact and wrong. Refused beside a running daemon.

    \b
    Examples:
      liftlog log reindex /var/lib/liftlog --dry-run
      liftlog log reindex /var/lib/liftlog --yes
    """
    from liftlog.cli.log_repair import reindex as run

    return run(directory, dry_run, assume_yes)
