"""`liftlog cluster`: prepares the metadata store of a cluster, shows its nodes, and moves its
replicas."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from liftlog.cli.config import settings_options
from liftlog.cli.lib.command_groups import Commands, Listed
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.options import (
    connect_to_server,
    debug_option,
    output_format,
    server_options,
    split_nodes,
)
from liftlog.cli.lib.output import print_table, write_object
from liftlog.cli.lib.problems import confirmed, note
from liftlog.cli.lib.suggestions import complete_stream
from liftlog.cli.lib.text import plural, printable
from liftlog.errors import ConfigError

if TYPE_CHECKING:
    from liftlog.client import ClusterInfo, ClusterNode, ClusterStream
    from liftlog.settings import Settings


_MOVES = {
    "move": "Move STREAM, or change the number of its replicas.",
    "drain": "Move all replicas of NODE to other nodes.",
    "undrain": "Place replicas on NODE again.",
    "forget": "Remove NODE, which is down and empty, from the cluster.",
    "restore-metadata": "Restore records that the metadata store has lost.",
}


@click.group(
    cls=Commands,
    name="cluster",
    listed={
        name: Listed(f"liftlog.cli.clustering.cluster_moves:{name.replace('-', '_')}", text)
        for name, text in _MOVES.items()
    }
    | {
        "adopt": Listed(
            "liftlog.cli.clustering.cluster_adopt:adopt",
            "Adopt restored streams of a stopped node into its cluster.",
        )
    },
)
@server_options
@debug_option
def cluster_commands() -> None:
    """Prepare a cluster, and show and move its replicas."""


@cluster_commands.command()
@settings_options
@click.option(
    "--replicas",
    type=click.IntRange(1, 5),
    default=3,
    show_default=True,
    help="Number of NATS servers that store the metadata. Use 1 only for tests: if this server is "
    "lost, the cluster's metadata are lost.",
)
@click.option(
    "--adopt",
    is_flag=True,
    help="Make the data directory of a stopped daemon without a cluster the data directory of "
    "the first node. The node keeps the streams, checkpoints and leases.",
)
@click.option(
    "--again",
    is_flag=True,
    help="If the metadata store of an existing cluster was lost: create an empty store for the "
    "cluster of the data directory.",
)
@debug_option
def init(
    config: Path | None, overrides: tuple[str, ...], replicas: int, adopt: bool, again: bool
) -> ExitCode:
    """Prepare the metadata store of a new cluster.

    With `cluster.store: nats` the store is a key-value bucket in JetStream.

    FILE is the configuration of any node. Run this command once, before the first node starts. It
    does not change an existing store, so you can run it again. A daemon never creates the store
    itself: if the store was lost, an empty store would make the daemon lose its streams. For the
    same reason, the command refuses to create a store if the data directory of the node belongs to
    a cluster.

    If the store was lost, and you have no backup of it, run the command with --again on the machine
    of a node. Then start all nodes. The nodes write the metadata that they already have into the
    new store. If someone has created a store by mistake in place of the lost store, --again assigns
    this store to the cluster. If some nodes are also lost, `liftlog cluster restore-metadata`
    restores the metadata without them.

    \b
    Examples:
      liftlog cluster init -c /etc/liftlog/liftlog.yaml
      liftlog cluster init -c test.yaml --replicas 1
      liftlog cluster init -c /etc/liftlog/liftlog.yaml --adopt
      liftlog cluster init -c /etc/liftlog/liftlog.yaml --again
    """
    from liftlog.settings import load_settings

    if again and adopt:
        raise click.UsageError("--again is for a cluster that exists, --adopt for a new one")

    settings = load_settings(config, dict(os.environ), overrides)
    if settings.cluster is None:
        raise ConfigError(
            "the configuration has no section cluster", hint="name the file of a node with -c FILE"
        )
    if again:
        _make_again(settings, replicas)
    elif settings.cluster.store != "nats":
        if not adopt:
            store = settings.cluster.store
            note(f"{store} needs no preparation: the first node that starts makes it.")
    else:
        _make_bucket(settings, replicas)
    if adopt:
        _adopt(settings)
    return ExitCode.OK


def _make_again(settings: Settings, replicas: int) -> None:
    from liftlog.server.node.clustered import make_again

    assert settings.cluster is not None
    made = asyncio.run(make_again(settings, settings.cluster, replicas))
    note(
        "The metadata store is ready for the nodes: start all of them."
        if made
        else "The metadata store of the cluster exists, and is left as it is."
    )


def _adopt(settings: Settings) -> None:
    from liftlog.cli.clustering.cluster_adopt import show
    from liftlog.server.node.adopting import adopt

    assert settings.cluster is not None
    found = asyncio.run(adopt(settings, settings.cluster))
    if show(found):
        return
    if not found:
        note(f"Node {settings.cluster.node} has no streams to adopt: it starts as any other node.")
        return
    note(
        f"Node {settings.cluster.node} has {plural(len(found), 'stream')}, each with one replica. "
        "Start it, and the other nodes; then `liftlog cluster move STREAM --replicas a,b,c`."
    )


def _make_bucket(settings: Settings, replicas: int) -> None:
    from liftlog.server.node.clustered import make_bucket

    assert settings.cluster is not None
    made = asyncio.run(make_bucket(settings, settings.cluster, replicas))
    bucket = f"the bucket liftlog_{settings.cluster.name}"
    note(f"{bucket} is ready for the nodes." if made else f"{bucket} exists, and is left as it is.")
    if replicas < 3:
        note("It is on fewer than three NATS servers: use it for tests only.")


@cluster_commands.command()
@server_options
@debug_option
def status() -> ExitCode:
    """Show the nodes, and the leader and replicas of each stream.

    The exit code is 1 in these cases: a stream has no leader, has a replica that is not in sync, or
    is being moved; or the metadata store cannot be reached.

    \b
    Examples:
      liftlog cluster status
      liftlog cluster status --output json
    """
    style = output_format()
    with connect_to_server() as client:
        found = client.cluster()
    behind = [one.name for one in found.replicated if one.is_under_replicated]
    moving = [one.name for one in found.replicated if one.is_moving]
    set_back = [one.name for one in found.replicated if one.is_set_back]
    if style != "table":
        write_object(found.to_wire(), style)
    elif not found.cluster_id:
        note("This daemon belongs to no cluster.")
    else:
        _show(found)
        if found.is_store_lost:
            note(
                "This node cannot reach the metadata store: this output may be old, and nothing "
                "can change. Restart no node."
            )
        if behind:
            note(f"{plural(len(behind), 'stream')} under-replicated: {', '.join(behind)}")
        for one in found.replicated:
            down = _missed(found, one)
            if down:
                names = ", ".join(down)
                note(
                    f"No node leads {one.name}: all acked messages are only on nodes that are "
                    f"down: {names}. Start {'it' if len(down) == 1 else 'one of them'}."
                )
        lost = [one.name for one in found.replicated if not one.has_whole_copy]
        if lost:
            note(
                f"No complete copy is left of {plural(len(lost), 'stream')}: {', '.join(lost)}. No "
                "node takes the lead automatically, unless `cluster.unclean` is balanced and all "
                "replicas are up: see `liftlog cluster elect --help`."
            )
        if set_back:
            note(
                f"The metadata store has lost records that the nodes have seen, of "
                f"{plural(len(set_back), 'stream')}: {', '.join(set_back)}. They restore "
                "these once they are in contact; otherwise see `liftlog cluster restore-metadata "
                "--dry-run`."
            )
        if moving:
            note(f"{plural(len(moving), 'stream')} moving: {', '.join(moving)}")
    is_bad = behind or moving or set_back or found.is_store_lost
    return ExitCode.FAILED if is_bad else ExitCode.OK


def _missed(found: ClusterInfo, stream: ClusterStream) -> list[str]:
    """Return the nodes that hold the complete copies of a stream without a leader; empty if one of
    these nodes runs."""
    whole = [*stream.isr, *stream.eligible] if stream.leader is None else []
    live = {one.node for one in found.members if one.live}
    return [] if live & {*whole} else whole


@cluster_commands.command()
@click.argument("stream", shell_complete=complete_stream)
@click.option("--node", metavar="NODE", help="The node that will lead. Default: the first replica.")
@click.option(
    "--lost",
    metavar="NODES",
    callback=split_nodes,
    help="Nodes whose copies are permanently lost, such as a,c. NODE then becomes the leader, "
    "although its copy may lack acked messages.",
)
@click.option("--yes", "-y", "assume_yes", is_flag=True, help="Do not ask before a loss.")
@server_options
@debug_option
def elect(stream: str, node: str | None, lost: list[str], assume_yes: bool) -> ExitCode:
    """Make another node the leader of STREAM.

    The node must be in sync. During the handover no message is lost, stored twice or refused. If
    the handover fails, the stream keeps its leader. Later, after `cluster.balance_interval`, the
    cluster makes the first replica the leader again.

    If the disks of all nodes that had a complete copy are lost, no node becomes leader
    automatically. The exception is a cluster with `cluster.unclean: balanced`, if all remaining
    replicas are up and can be read. Otherwise pass the lost nodes with --lost, and the node with
    the best remaining copy with --node. The cluster refuses --lost while the stream has a leader,
    or while a node that is not in --lost has a complete copy.

    \b
    Examples:
      liftlog cluster elect orders --node b
      liftlog cluster elect orders
      liftlog cluster elect orders --node b --lost a,c
    """
    if lost and node is None:
        raise click.UsageError(
            "Name the node that is to lead with --node.", click.get_current_context()
        )
    if lost and not assume_yes and not confirmed(f"Give up what only {', '.join(lost)} had?"):
        return ExitCode.FAILED
    with connect_to_server() as client:
        leader = client.elect_leader(stream, node, lost=lost)
    note(f"Stream {printable(stream)} is led by node {printable(leader)}.")
    return ExitCode.OK


def _show(found: ClusterInfo) -> None:
    print_table(
        ("NODE", "STATE", "ZONE", "REPLICAS", "ADDRESS", "VERSION"),
        [
            (
                printable(one.node),
                _state(one),
                printable(one.zone or "-"),
                str(one.replicas),
                printable(one.address),
                one.version,
            )
            for one in found.members
        ],
        right=(3,),
    )
    if found.streams:
        click.echo()
        print_table(
            ("STREAM", "LEADER", "EPOCH", "REPLICAS", "IN SYNC", "COMMITTED", "END"),
            [_row(one) for one in found.replicated],
            right=(2, 5, 6),
        )


def _state(node: ClusterNode) -> str:
    state = "down" if not node.live else "stopping" if node.stopping else "live"
    if node.draining:
        state = f"{state}, {'draining' if node.replicas else 'drained'}"
    if node.live and node.silent_seconds:
        state = f"{state}, silent for {node.silent_seconds:.0f} s"
    if ahead := node.clock_ahead_seconds:
        which = "ahead" if ahead > 0 else "behind"
        state = f"{state}, clock {abs(ahead):,.0f} s {which}"
    return state


def _row(one: ClusterStream) -> tuple[str, ...]:
    ends = (one.high_watermark, one.log_end_offset)
    return (
        printable(one.name),
        printable(one.leader or "-"),
        str(one.leader_epoch),
        printable(",".join(_marked(one, node) for node in one.replicas)),
        printable(",".join(one.isr) or "-"),
        *("-" if end is None else f"{end:,}" for end in ends),
    )


def _marked(stream: ClusterStream, node: str) -> str:
    """Return the name of a node, with a mark if a move adds or removes the node."""
    return ("+" if node in stream.adding else "-" if node in stream.removing else "") + node
