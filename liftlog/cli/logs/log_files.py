"""`liftlog log`: verify and dump, which only read the files of a log; repair and reindex, which
change them."""

from __future__ import annotations

from pathlib import Path

import click

from liftlog.cli.lib.command_groups import Commands
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.options import debug_option, output_option
from liftlog.cli.lib.ranges import OffsetType

_DIRECTORY = click.Path(path_type=Path)


@click.group(cls=Commands, name="log", short_help="Inspect the files of a log, and repair them.")
@output_option
@debug_option
def log_commands() -> None:
    """Inspect and repair the files of a log.

    DIR is a data directory (`data_dir`) or the directory of one stream in it. `verify` and `dump`
    only read, and can run beside a daemon. `repair` and `reindex` write, and are refused while a
    daemon uses the directory.
    """


@log_commands.command()
@click.argument("directory", metavar="DIR", type=_DIRECTORY)
@click.option(
    "--allow-known",
    is_flag=True,
    help="Exit with 0 if a daemon has already found and quarantined all losses.",
)
@output_option
@debug_option
def verify(directory: Path, allow_known: bool) -> ExitCode:
    """Check every byte under DIR.

    Checks manifest, segments, batch headers, checksums and offsets. Exits with 8 if
    offsets are lost or files are damaged, and reports them. A write of a running daemon that is not
    complete yet is not damage.

    \b
    Examples:
      liftlog log verify /var/lib/liftlog
      liftlog log verify /var/lib/liftlog/streams/orders -o json
    """
    from liftlog.cli.logs.log_reading import verify as run

    return run(directory, allow_known)


@log_commands.command()
@click.argument("directory", metavar="DIR", type=_DIRECTORY)
@click.option("--values", is_flag=True, help="Print the records, not only the batches.")
@click.option(
    "--from",
    "first_offset",
    type=OffsetType(),
    default=0,
    metavar="OFFSET",
    help="Start with the batch that contains this offset.",
)
@click.option(
    "-n", "limit", type=click.IntRange(min=1), metavar="N", help="Stop after N batches or records."
)
@output_option
@debug_option
def dump(directory: Path, values: bool, first_offset: int, limit: int | None) -> ExitCode:
    """Print the batches under DIR, or with --values their records.

    Prints every intact batch, including batches that are not committed yet or are below the log's
    start. With `--output jsonl` each line is a batch; with --values it is a record as `consume`
    prints it, with its stream. Damage is reported on stderr, and the exit code is 8.

    \b
    Examples:
      liftlog log dump /var/lib/liftlog/streams/orders
      liftlog log dump /var/lib/liftlog --values -o jsonl | jq -r .subject
    """
    from liftlog.cli.logs.log_reading import dump as run

    return run(directory, values, first_offset, limit)


@log_commands.command()
@click.argument("directory", metavar="DIR", type=_DIRECTORY)
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("--yes", "-y", "assume_yes", is_flag=True, help="Do not ask.")
@click.option(
    "--subject",
    "-s",
    metavar="SUBJECT",
    help="NATS subject of the stream, if its manifest is lost with its settings.",
)
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the stream, if its manifest is lost; as for `stream create`. Repeatable.",
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
    """Repair the log under DIR while no daemon uses it.

    Reads every byte, shows what it would do, then asks. Damaged ranges are quarantined: readers get
    an error that names the lost offsets, and can continue after them. Quarantined ranges that can
    be read are released to readers. A torn tail that was never acked is cut off. A lost manifest is
    rebuilt from the segments, as far as they prove it; the settings of its stream are those of its
    record in the file `records`, or have to be given by --subject and --set. No readable record is
    dropped.

    Everything that is changed or removed is first copied to `repaired/` in the data directory. With
    --dry-run nothing is written, and the exit code is 8 if there is something to repair.

    \b
    Examples:
      liftlog log repair /var/lib/liftlog --dry-run
      liftlog log repair /var/lib/liftlog/streams/orders --subject 'orders.>' --yes
    """
    from liftlog.cli.logs.log_repair import repair as run

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
    from liftlog.cli.logs.log_repair import reindex as run

    return run(directory, dry_run, assume_yes)
