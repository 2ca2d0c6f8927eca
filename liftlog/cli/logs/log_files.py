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

    DIR is a data directory (`data_dir`), or the directory of one stream in it. `verify` and `dump`
    only read, and can run at the same time as a daemon. `repair` and `reindex` write, so they
    refuse to run while a daemon uses the directory.
    """


@log_commands.command()
@click.argument("directory", metavar="DIR", type=_DIRECTORY)
@click.option(
    "--allow-known",
    is_flag=True,
    help="Use the exit code 0 if a daemon has already found and quarantined all losses.",
)
@output_option
@debug_option
def verify(directory: Path, allow_known: bool) -> ExitCode:
    """Check every byte under DIR.

    The command checks manifest, segments, batch headers, checksums and offsets. If offsets are
    lost or files are damaged, it reports them, and the exit code is 8. A write of a running daemon
    that is not complete yet does not count as damage.

    \b
    Examples:
      liftlog log verify /var/lib/liftlog
      liftlog log verify /var/lib/liftlog/streams/orders -o json
    """
    from liftlog.cli.logs.log_reading import verify as run

    return run(directory, allow_known)


@log_commands.command()
@click.argument("directory", metavar="DIR", type=_DIRECTORY)
@click.option("--values", is_flag=True, help="Print the records instead of the batches.")
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
    """Print the batches under DIR, or the records with --values.

    The command prints every intact batch, including batches that are not committed yet and batches
    below the log's start. With `--output jsonl` each line is a batch. With --values each line is a
    record as `consume` prints it, with its stream. If the command finds damage, it reports the
    damage on stderr, and the exit code is 8.

    \b
    Examples:
      liftlog log dump /var/lib/liftlog/streams/orders
      liftlog log dump /var/lib/liftlog --values -o jsonl | jq -r .subject
    """
    from liftlog.cli.logs.log_reading import dump as run

    return run(directory, values, first_offset, limit)


@log_commands.command()
@click.argument("directory", metavar="DIR", type=_DIRECTORY)
@click.option("--dry-run", is_flag=True, help="Only show the repair steps.")
@click.option("--yes", "-y", "assume_yes", is_flag=True, help="Do not ask.")
@click.option(
    "--subject",
    "-s",
    metavar="SUBJECT",
    help="NATS subject of the stream, if its manifest is lost.",
)
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the stream, if its manifest is lost, as for `stream create`. Can be "
    "repeated.",
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

    The command reads every byte, shows the repair steps, and asks before it executes them. It
    quarantines damaged ranges: readers receive an error with the lost offsets, and can continue
    after them. If it can read a quarantined range, it makes the range available again. It truncates
    a torn tail that was never acked. It rebuilds a lost manifest from the segments. The settings of
    the stream then come from the file `records`, or from --subject and --set. It removes no
    readable record.

    Before the command changes or removes a file, it copies the file to `repaired/` in the data
    directory. With --dry-run it writes nothing, and the exit code is 8 if a repair is necessary.

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

    The command compares the index of every sealed segment with the batch headers. It reports the
    indexes that are missing or different, and asks. An index contains only information from its
    segment, so the command keeps no copy of the old index. A daemon itself rebuilds an index that
    is missing or has a wrong checksum. This command also finds indexes with a correct checksum and
    wrong content. It refuses to run while a daemon uses the directory.

    \b
    Examples:
      liftlog log reindex /var/lib/liftlog --dry-run
      liftlog log reindex /var/lib/liftlog --yes
    """
    from liftlog.cli.logs.log_repair import reindex as run

    return run(directory, dry_run, assume_yes)
