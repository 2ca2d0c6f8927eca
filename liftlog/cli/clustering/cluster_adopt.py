"""`liftlog cluster adopt`: adds streams that were restored from a backup to a cluster."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from liftlog.cli.config import settings_options
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.options import debug_option, output_format
from liftlog.cli.lib.output import print_table, write_object
from liftlog.cli.lib.problems import note
from liftlog.cli.lib.text import plural, printable
from liftlog.errors import ConfigError

if TYPE_CHECKING:
    from liftlog.server.node.adopting import Adopted


@click.command()
@click.argument("streams", nargs=-1)
@settings_options
@debug_option
def adopt(streams: tuple[str, ...], config: Path | None, overrides: tuple[str, ...]) -> ExitCode:
    """Adopt restored streams of a stopped node into its cluster.

    After `liftlog backup restore --add`, the restored streams in the data directory belong to no
    cluster. Without STREAMS the command adopts all these streams. FILE is the configuration of the
    node, which must have been in the cluster before. After the command, each of these streams has
    one replica. Start the node, and use `liftlog cluster move` to create more replicas.

    If the cluster has a stream of the same name, delete that stream first. Consumers of a stream
    that was deleted by mistake continue at their positions, up to the end of the backup.

    \b
    Examples:
      liftlog cluster adopt -c /etc/liftlog/liftlog.yaml
      liftlog cluster adopt -c /etc/liftlog/liftlog.yaml orders
    """
    from liftlog.server.node.adopting import adopt_more
    from liftlog.settings import load_settings

    settings = load_settings(config, dict(os.environ), overrides)
    if settings.cluster is None:
        raise ConfigError(
            "the configuration has no section cluster", hint="name the file of a node with -c FILE"
        )
    found = asyncio.run(adopt_more(settings, settings.cluster, streams))
    if show(found):
        return ExitCode.OK
    if not found:
        note(f"Node {settings.cluster.node} has no stream that belongs to no cluster.")
        return ExitCode.OK
    note(
        f"Node {settings.cluster.node} has {plural(len(found), 'stream')}, each with one replica. "
        "Start it, then `liftlog cluster move STREAM --replicas a,b,c`."
    )
    return ExitCode.OK


def show(found: Sequence[Adopted]) -> bool:
    """Print the adopted streams; return True if the format needs no further output."""
    if output_format() != "table":
        write_object({"streams": [asdict(one) for one in found]}, output_format())
        return True
    if found:
        print_table(
            ("STREAM", "FIRST", "END", ""),
            [
                (
                    printable(one.stream),
                    f"{one.log_start_offset:,}",
                    f"{one.log_end_offset:,}",
                    "adopted" if one.is_new else "belonged to it already",
                )
                for one in found
            ],
            right=(1, 2),
        )
    return False
