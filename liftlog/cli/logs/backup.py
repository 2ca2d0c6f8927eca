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
    help="On a node of a cluster: longest wait until the replicas on this node have all records "
    "that their leaders have committed.",
)
@server_options
@debug_option
def create(data_dir: Path, backup: Path, names: tuple[str, ...], wait: str) -> ExitCode:
    """Copy the streams in DATA_DIR into BACKUP.

    BACKUP is a new directory. The daemon may run. The backup contains all messages that were acked
    before the command started, and the checkpoints of consumers. You need permission to read
    DATA_DIR. If records were already damaged or missing, the backup contains all other records,
    and the exit code is 8.

    On a node of a cluster, the command requests the committed offset of each replica from the
    daemon. It reads the address of the daemon from DATA_DIR. If the daemon needs a login, use
    --token or --nkey. If its certificate is for another name, use --server. The exit code is 12 if
    the daemon does not answer, or if a replica stays behind its leader. In this case some streams
    in the backup may lack the last acked messages. The command prints the names of these streams.

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
    """Show the contents of BACKUP, without reading all files.

    \b
    Example:
      liftlog backup info /backup/liftlog-2026-01-31
    """
    from liftlog.cli.logs.backup_run import info as run

    run(backup)


@backup_commands.command()
@click.argument("backup", type=_DIRECTORY)
@click.option(
    "--quick",
    is_flag=True,
    help="Check only the checksums of the files, and not the checksums of the batches.",
)
@output_option
@debug_option
def verify(backup: Path, quick: bool) -> ExitCode:
    """Check every byte of BACKUP.

    The command checks that all files are unchanged. Then it checks every record batch in them,
    like `liftlog log verify`. The exit code is 8 if it finds an error.

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
    help="Add the streams of --stream to a DATA_DIR that has other streams. Stop its daemon "
    "before.",
)
@click.option("--dry-run", is_flag=True, help="Check the backup and DATA_DIR, and copy nothing.")
@output_option
@debug_option
def restore(
    backup: Path, data_dir: Path, names: tuple[str, ...], add: bool, dry_run: bool
) -> ExitCode:
    """Restore BACKUP into DATA_DIR, the directory of a daemon.

    DATA_DIR must be empty or must not exist. The command checks every file while it copies the
    file, and refuses a damaged backup. The streams continue in a new leader epoch. So if a consumer
    has read beyond the end of the backup, it receives the error DIVERGED, and never different
    records at offsets that it has already read. No daemon opens DATA_DIR before the command has
    succeeded. If the command was interrupted, run it again.

    With --add, the command adds streams to a DATA_DIR with other streams. On a node of a cluster,
    then use `liftlog cluster adopt` to add the restored streams to the cluster. After a restore
    into an empty directory, `liftlog cluster init --adopt` makes this directory the data directory
    of the first node.

    Retention by age continues. Soon after the daemon starts, it deletes records that have become
    too old.

    \b
    Examples:
      liftlog backup restore /backup/liftlog-2026-01-31 /var/lib/liftlog
      liftlog backup restore /backup/liftlog-2026-01-31 /var/lib/liftlog --stream orders --add
    """
    from liftlog.cli.logs.backup_run import restore as run

    if add and not names:
        raise click.UsageError("--add needs the names of the streams: --stream NAME")
    return run(backup, data_dir, names, add=add, dry_run=dry_run)
