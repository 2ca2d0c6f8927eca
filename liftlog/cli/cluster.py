"""`liftlog cluster`: the nodes of a cluster, and where the replicas of its streams stand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from liftlog.cli.exit_codes import ExitCode
from liftlog.cli.groups import Commands
from liftlog.cli.options import connect_to_server, debug_option, output_format, server_options
from liftlog.cli.output import print_table, write_object
from liftlog.cli.problems import note
from liftlog.cli.text import plural, printable

if TYPE_CHECKING:
    from liftlog.client import ClusterInfo, ClusterNode, ClusterStream


@click.group(cls=Commands, name="cluster")
@server_options
@debug_option
def cluster_commands() -> None:
    """Show the nodes of a cluster and its replicas."""


@cluster_commands.command()
@server_options
@debug_option
def status() -> ExitCode:
    """Show the nodes, and the leader and replicas of each stream.

    Exits with 1 when a stream has no leader, or a replica that is not in sync.

    \b
    Examples:
      liftlog cluster status
      liftlog cluster status --output json
    """
    style = output_format()
    with connect_to_server() as client:
        found = client.cluster()
    behind = [one.name for one in found.replicated if one.is_under_replicated]
    if style != "table":
        write_object(found.to_wire(), style)
    elif not found.cluster_id:
        note("This daemon belongs to no cluster.")
    else:
        _show(found)
        if behind:
            note(f"{plural(len(behind), 'stream')} under-replicated: {', '.join(behind)}")
    return ExitCode.FAILED if behind else ExitCode.OK


def _show(found: ClusterInfo) -> None:
    print_table(
        ("NODE", "STATE", "ADDRESS", "VERSION"),
        [(printable(one.node), _state(one), printable(one.address), one.version)
         for one in found.members],
    )  # fmt: skip
    if found.streams:
        click.echo()
        print_table(
            ("STREAM", "LEADER", "EPOCH", "REPLICAS", "IN SYNC", "COMMITTED", "END"),
            [_row(one) for one in found.replicated],
            right=(2, 5, 6),
        )


def _state(node: ClusterNode) -> str:
    if not node.live:
        return "down"
    return "draining" if node.draining else "live"


def _row(one: ClusterStream) -> tuple[str, ...]:
    ends = (one.high_watermark, one.log_end_offset)
    return (
        printable(one.name),
        printable(one.leader or "-"),
        str(one.leader_epoch),
        printable(",".join(one.replicas)),
        printable(",".join(one.isr) or "-"),
        *("-" if end is None else f"{end:,}" for end in ends),
    )
