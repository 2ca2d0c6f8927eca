"""`liftlog cluster move|drain|undrain|forget|restore-metadata`: change the nodes that hold
replicas, and restore lost metadata."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from liftlog.cli.lib.command_groups import Command
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.options import (
    connect_to_server,
    debug_option,
    output_format,
    server_options,
    split_nodes,
)
from liftlog.cli.lib.output import print_table, write_object
from liftlog.cli.lib.problems import Problem, confirmed, note, warn
from liftlog.cli.lib.text import plural, printable

if TYPE_CHECKING:
    from liftlog.client import ClusterInfo, ClusterNode, ClusterStream, SyncClient

_LOOK_SECONDS = 0.5
_MAX_NAMED = 5

_no_wait = click.option(
    "--no-wait",
    is_flag=True,
    help="Do not wait for the end. The nodes complete the operation without this command.",
)


@click.command(cls=Command)
@click.argument("stream")
@click.option(
    "--replicas",
    metavar="NODES",
    callback=split_nodes,
    help="The nodes that will have a replica, such as a,b,d. The first node is preferred as "
    "leader.",
)
@click.option(
    "--cancel",
    is_flag=True,
    help="Cancel a running move; the stream returns to its previous replicas.",
)
@_no_wait
@server_options
@debug_option
def move(stream: str, replicas: list[str], cancel: bool, no_wait: bool) -> ExitCode:
    """Move STREAM, or change the number of its replicas.

    New replicas copy the stream while it is in use, and no ack waits for them. When all new
    replicas are in sync, the cluster removes the old replicas, the replica of the leader last. The
    cluster's metadata contain the move, so it continues even if this command or a node stops. Run
    the command again to wait for the end of the move.

    \b
    Examples:
      liftlog cluster move orders --replicas a,b,d
      liftlog cluster move orders --cancel
    """
    if bool(replicas) == cancel:
        raise click.UsageError(
            "--cancel brings the replicas from before the move back: name none with it."
            if cancel
            else "Name the nodes with --replicas a,b,d, or use --cancel.",
            click.get_current_context(),
        )
    with connect_to_server() as client:
        client.move_stream(stream, replicas)
        found = _moved(client, stream, wait=not no_wait)
    if replicas and not found.is_moving and set(found.target) != set(replicas):
        raise Problem(
            f"stream {stream} is on {', '.join(found.target)} now: the move was cancelled, or "
            "another one came after it",
            ExitCode.CONFLICT,
        )
    _tell_stream(found)
    return ExitCode.OK


def _moved(client: SyncClient, stream: str, *, wait: bool) -> ClusterStream:
    def look(cluster: ClusterInfo) -> tuple[bool, str]:
        found = _stream_in(cluster, stream)
        waits_for = [one for one in found.adding if one not in found.isr]
        if found.leader is None:
            return not found.is_moving, f"{stream} has no leader at the moment"
        if waits_for:
            return False, f"{stream} is copied to {', '.join(waits_for)}"
        return not found.is_moving, f"{stream} leaves {', '.join(found.removing)}"

    return _stream_in(_watch(client, look, wait=wait), stream)


def _stream_in(cluster: ClusterInfo, name: str) -> ClusterStream:
    for one in cluster.replicated:
        if one.name == name:
            return one
    raise Problem(f"there is no stream {name!r} any more", ExitCode.NOT_FOUND)


def _tell_stream(found: ClusterStream) -> None:
    style = output_format()
    if style != "table":
        write_object(found.to_wire(), style)
    elif found.is_moving:
        note(f"{found.name} moves to {', '.join(found.target)}: see `liftlog cluster status`.")
    else:
        note(f"{found.name} is on {', '.join(found.target)}.")


@click.command(cls=Command)
@click.argument("node")
@_no_wait
@server_options
@debug_option
def drain(node: str, no_wait: bool) -> ExitCode:
    """Move all replicas of NODE to other nodes.

    The cluster places no new replicas on NODE. It selects the other nodes in the same way as for
    new streams: it prefers nodes in zones without a replica of the stream, and nodes with the
    fewest replicas. The cluster's metadata contain the operation, so it continues even if this
    command stops. Run the command again to wait for the end. You can also drain a node that is
    down, if its streams have other replicas in sync.

    \b
    Examples:
      liftlog cluster drain c
      liftlog cluster drain c --no-wait
    """

    def look(cluster: ClusterInfo) -> tuple[bool, str]:
        left = _node_in(cluster, node).replicas
        names = [one.name for one in cluster.replicated if node in one.replicas]
        named = ", ".join(names[:_MAX_NAMED]) + (" ..." if len(names) > _MAX_NAMED else "")
        return not left, f"{plural(left, 'replica')} left on {node}: {named or 'names not shown'}"

    with connect_to_server() as client:
        client.drain_node(node)
        found = _node_in(_watch(client, look, wait=not no_wait), node)
    _tell_node(found, f"{plural(found.replicas, 'replica')} left on {node}.")
    return ExitCode.OK


@click.command(cls=Command)
@click.argument("node")
@server_options
@debug_option
def undrain(node: str) -> ExitCode:
    """Place replicas on NODE again.

    Replicas that were moved to other nodes do not return automatically. To move them back, use
    `liftlog cluster move`.

    \b
    Examples:
      liftlog cluster undrain c
    """
    with connect_to_server() as client:
        client.drain_node(node, ends=True)
        _tell_node(_node_in(client.cluster(), node), f"{node} takes replicas again.")
    return ExitCode.OK


@click.command(cls=Command)
@click.argument("node")
@server_options
@debug_option
def forget(node: str) -> ExitCode:
    """Remove NODE, which must be down and without replicas.

    If the machine of a node is lost, first drain the node, and then use this command. If the node
    starts again with its data directory, it joins the cluster again, but does not use its old
    copies of the streams.

    \b
    Examples:
      liftlog cluster forget c
    """
    with connect_to_server() as client:
        client.forget_node(node)
        found = client.cluster()
    style = output_format()
    if style != "table":
        write_object(found.to_wire(), style)
    else:
        note(f"The nodes are {', '.join(one.node for one in found.members)}.")
    return ExitCode.OK


@click.command("restore-metadata", cls=Command)
@click.option("--dry-run", is_flag=True, help="Only show the metadata that would be stored.")
@click.option("--yes", "-y", "assume_yes", is_flag=True, help="Do not ask.")
@server_options
@debug_option
def restore_metadata(dry_run: bool, assume_yes: bool) -> ExitCode:
    """Restore metadata that the metadata store has lost.

    If the store was restored from an older copy, or has lost metadata, the nodes write their newest
    metadata into the store again. They do this automatically only if no missing node can have newer
    metadata. This command writes the metadata without this condition. Newer metadata of the missing
    nodes are then lost, and possibly also messages that only these nodes had acked. If you can,
    start the missing nodes instead.

    \b
    Examples:
      liftlog cluster restore-metadata --dry-run
      liftlog cluster restore-metadata --yes
    """
    style = output_format()
    with connect_to_server() as client:
        found = client.restore_metadata(dry_run=True)
        if style != "table" and dry_run:
            write_object({"streams": found.streams, "unheard": found.unheard}, style)
            return ExitCode.OK
        if found.unheard:
            warn(f"{', '.join(found.unheard)} did not send their records")
        if not found.streams:
            note("The metadata store has the newest records that the nodes have.")
            return ExitCode.OK
        if style == "table":
            print_table(
                ("STREAM", "STORED", "SEEN", "EPOCH", "IN SYNC", ""),
                [_forgotten(one) for one in found.streams],
                right=(1, 2, 3),
            )
        if dry_run:
            return ExitCode.OK
        if not assume_yes and not confirmed(f"Store {plural(len(found.streams), 'record')} again?"):
            return ExitCode.FAILED
        done = client.restore_metadata()
    if style != "table":
        write_object({"streams": done.streams, "unheard": done.unheard}, style)
    left = [str(one.get("stream")) for one in done.streams if not one.get("restored")]
    if left:
        raise Problem(
            f"the record changed meanwhile: {printable(', '.join(left))}", ExitCode.TRY_AGAIN
        )
    note(f"{plural(len(done.streams), 'record')} stored; each stream elects a leader now.")
    return ExitCode.OK


def _forgotten(one: dict[str, Any]) -> tuple[str, ...]:
    stored = one.get("stored_version")
    return (
        printable(str(one.get("stream"))),
        "-" if stored is None else str(stored),
        str(one.get("known_version")),
        str(one.get("epoch")),
        printable(",".join(map(str, one.get("in_sync") or [])) or "-"),
        "deleted" if one.get("deleted") else "contradicting" if one.get("contradicting") else "",
    )


def _node_in(cluster: ClusterInfo, name: str) -> ClusterNode:
    for one in cluster.members:
        if one.node == name:
            return one
    raise Problem(f"there is no node {name!r} any more", ExitCode.NOT_FOUND)


def _tell_node(found: ClusterNode, text: str) -> None:
    style = output_format()
    if style != "table":
        write_object(found.to_wire(), style)
    else:
        note(text)


def _watch(
    client: SyncClient, look: Callable[[ClusterInfo], tuple[bool, str]], *, wait: bool
) -> ClusterInfo:
    """Wait until `look` returns True for the cluster, and return the cluster. Prints each state in
    between once."""
    told = ""
    try:
        while True:
            found = client.cluster()
            is_done, text = look(found)
            if is_done or not wait:
                return found
            if text != told:
                note(printable(text))
                told = text
            time.sleep(_LOOK_SECONDS)
    except KeyboardInterrupt:
        note("The nodes complete it on their own: see `liftlog cluster status`.")
        raise
