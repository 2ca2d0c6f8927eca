"""`liftlog backup`: create, info, verify, restore. `backup_run` does the work."""

from __future__ import annotations

from pathlib import Path

import click

from liftlog.cli.lib.command_groups import Commands
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.options import debug_option, duration_of, output_option, server_options

_DIRECTORY = click.Path(path_type=Path)
_streams_option = click.option(
    "--stream",
    "-s",
    "names",
    multiple=True,
    metavar="NAME",
    help="Only this stream. Can be repeated.",
)


@click.group(cls=Commands, name="backup", aliases={"show": "info"})
@output_option
@debug_option
def backup_commands() -> None:
    """Back up a data directory, while the daemon runs."""


@backup_commands.command()
@click.argument("data_dir", type=_DIRECTORY)
@click.argument("backup", type=_DIRECTORY)
@_streams_option
@click.option(
    "--wait",
    metavar="DURATION",
    default="10s",
    show_default=True,
    help="How long to wait, on a node of a cluster, until the replicas here are committed as far "
    "as their streams.",
)
@server_options
@debug_option
def create(data_dir: Path, backup: Path, names: tuple[str, ...], wait: str) -> ExitCode:
    """Copy the streams in DATA_DIR into BACKUP.

    BACKUP is a new directory. The daemon may run: the backup contains everything that was acked
    before the command started, including the checkpoints of consumers. The user must be able to
    read DATA_DIR. Exit code 8 if records were already damaged or missing: the backup contains the
    others.

    On a node of a cluster the command asks the daemon how far each replica is committed. It finds
    the daemon by DATA_DIR; give a login with --token or --nkey if it needs one, and --server if its
    certificate is for another name. Exit code 12 if the daemon cannot be asked, or a replica stays
    behind its leader: the backup is made, and names the streams that may lack the last acked
    messages.

    \b
    Example:
      liftlog backup create /var/lib/liftlog /backup/liftlog-2026-01-31
    """
    from liftlog.cli.logs.backup_run import create as run

    return run(data_dir, backup, names, duration_of("--wait", wait))


@backup_commands.command()
@click.argument("backup", type=_DIRECTORY)
@output_option
@debug_option
def info(backup: Path) -> None:
    """Show what BACKUP contains, without reading all of it.

    \b
    Example:
      liftlog backup info /backup/liftlog-2026-01-31
    """
    from liftlog.cli.logs.backup_run import info as run

    run(backup)


@backup_commands.command()
@click.argument("backup", type=_DIRECTORY)
@click.option(
    "--quick", is_flag=True, help="Check only the checksums of the files, not those of the batches."
)
@output_option
@debug_option
def verify(backup: Path, quick: bool) -> ExitCode:
    """Check every byte of BACKUP.

    Checks that all files are there as they were written, and then, like `liftlog log verify`, every
    record batch in them. Exit code 8 if anything is wrong.

    \b
    Example:
      liftlog backup verify /backup/liftlog-2026-01-31
    """
    from liftlog.cli.logs.backup_run import verify as run

    return run(backup, quick)


@backup_commands.command()
@click.argument("backup", type=_DIRECTORY)
@click.argument("data_dir", type=_DIRECTORY)
@_streams_option
@click.option(
    "--add",
    is_flag=True,
    help="Add the streams of --stream to a DATA_DIR that has others. Stop its daemon before.",
)
@click.option("--dry-run", is_flag=True, help="Check the backup and the target; copy nothing.")
@output_option
@debug_option
def restore(
    backup: Path, data_dir: Path, names: tuple[str, ...], add: bool, dry_run: bool
) -> ExitCode:
    """Restore BACKUP into DATA_DIR for a daemon to start with.

    DATA_DIR must be empty or must not exist. Every file is checked while it is copied; a damaged
    backup is refused. Streams continue in a new leader epoch: consumers that had read beyond the
    backup get DIVERGED, never other records in place of those they have read. No daemon opens
    DATA_DIR before the command has succeeded; if it was interrupted, run it again.

    With --add, streams are restored beside those that DATA_DIR has. On a node of a cluster,
    `liftlog cluster adopt` then makes them streams of the cluster, and after a restore into an
    empty directory `liftlog cluster init --adopt` makes it that of the first node.

    Retention by age continues: records that are too old by now are deleted soon after the daemon
    starts.

    \b
    Examples:
      liftlog backup restore /backup/liftlog-2026-01-31 /var/lib/liftlog
      liftlog backup restore /backup/liftlog-2026-01-31 /var/lib/liftlog --stream orders --add
    """
    from liftlog.cli.logs.backup_run import restore as run

    if add and not names:
        raise click.UsageError("--add needs the names of the streams: --stream NAME")
    return run(backup, data_dir, names, add=add, dry_run=dry_run)
