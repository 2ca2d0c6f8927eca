"""Moves replicas between nodes: moves a stream, drains a node, removes a node for good.

A move is stored in the stream's record, and a drain is stored in the node's record. So both
continue even if a node stops. The node that leads a stream continues the stream's moves, and begins
moves away from drained nodes. New replicas catch up outside the in-sync set. If the leader's own
replica moves away, the leader hands over first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from liftlog.cluster import transitions
from liftlog.cluster.placement import replace_nodes
from liftlog.cluster.record import StreamMetadata
from liftlog.errors import Conflict, InvalidArgument, LiftlogError, StreamNotFound
from liftlog.server.metadata.mirror import Mirror
from liftlog.server.node.placing import candidates, takers_text

logger = logging.getLogger("liftlog.server.replication")

_AT_ONCE = 8
"""Maximum number of streams that a leader copies to new replicas at the same time because nodes are
drained. `cluster.catch_up_rate` limits the total rate of these copies."""
_MAX_NAMED = 5


class Moves:
    """Moves replicas. Belongs to the event loop. Each change is durable on return. Requesting the
    same change again does no harm."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._stuck: dict[str, str] = {}
        """Streams that stay on a drained node, and the reason for each."""

    async def move(self, name: str, target: Sequence[str]) -> None:
        """Begin to move a stream to the nodes `target`, the preferred leader first. Raises Conflict
        if the stream is already being moved to other nodes, or if a new node cannot accept a
        replica. Also raises StreamNotFound, InvalidArgument, MetadataUnavailable."""
        await self._check_nodes(target)

        def step(record: StreamMetadata) -> StreamMetadata | None:
            after = _allowed(transitions.reassign(record, target))
            for node in () if after is None else after.adding:
                self._check_takes(node)
            return after

        record = await self._change(name, step)
        logger.info("move-begun stream=%s replicas=%s", name, ",".join(record.replicas))

    async def cancel(self, name: str) -> None:
        """Cancel a move, and return to the replicas from before the move. Raises Conflict if the
        new replicas are needed. Also raises StreamNotFound, InvalidArgument and
        MetadataUnavailable, as `move` does."""
        await self._change(name, lambda record: _allowed(transitions.cancel(record)))
        logger.info("move-cancelled stream=%s", name)

    async def drain(self, node: str) -> None:
        """Place no more replicas on `node`, and move its replicas to other nodes. Raises Conflict
        if there are too few other nodes, MetadataUnavailable."""
        await self._check_nodes([node])
        self._check_leavable(node)
        await self._mirror.nodes.change(node, _draining(True))
        logger.info("drain-begun node=%s", node)

    async def undrain(self, node: str) -> None:
        """Place replicas on `node` again. Replicas that have moved away do not come back. Raises
        Conflict, MetadataUnavailable."""
        await self._check_nodes([node])
        await self._mirror.nodes.change(node, _draining(False))
        logger.info("drain-ended node=%s", node)

    async def forget(self, node: str) -> None:
        """Remove a node for good. Raises Conflict while the node is live or has replicas,
        MetadataUnavailable."""
        await self._mirror.load()
        await self._check_nodes([node])
        if node in self._mirror.directory.live:
            raise Conflict(
                f"node {node} is live",
                hint="stop its daemon; a killed daemon counts as live until its session ends",
            )
        if held := self._held(node):
            raise Conflict(
                f"node {node} has replicas of {_named(held)}",
                hint=f"`liftlog cluster drain {node}` moves them to other nodes; "
                "`liftlog stream rm` deletes a stream that has no other replica",
            )
        for name, record in list(self._mirror.records.items()):
            if node in record.starts:
                await self._mirror.change(name, lambda one: transitions.removed(one, node))
        await self._mirror.nodes.remove(node)
        logger.info("node-forgotten node=%s", node)

    # --- the leader of a stream ---

    async def leave_drained(self, led: Iterable[str]) -> None:
        """Begin to move replicas of `led`, the streams that this node leads, away from drained
        nodes. Moves a few streams at a time. Does not raise: failed moves are retried."""
        drained = {one.name for one in self._mirror.directory.nodes.values() if one.draining}
        if not drained:
            self._stuck.clear()
            return
        records = [self._mirror.records[name] for name in led]
        free = _AT_ONCE - sum(1 for one in records if one.adding)
        for record in records:
            if free <= 0:
                return
            moving = record.adding or record.removing
            if moving or record.deleted or drained.isdisjoint(record.target):
                continue
            free -= await self._leave_node(record, drained)

    async def _leave_node(self, record: StreamMetadata, drained: set[str]) -> bool:
        name = record.name
        try:
            # The step uses the newest record, because an operator may have moved the stream
            # meanwhile.
            after = await self._mirror.change(
                name, lambda one: transitions.reassign(one, self._without(one, drained))
            )
        except LiftlogError as error:
            if self._stuck.get(name) != str(error):
                logger.warning("not-moved stream=%s reason=%s", name, error)
            self._stuck[name] = str(error)
            return False
        self._stuck.pop(name, None)
        if after is None or after.version == record.version:
            return False
        logger.info("move-begun stream=%s replicas=%s", name, ",".join(after.target))
        return True

    # --- checks ---

    async def _change(
        self, name: str, step: Callable[[StreamMetadata], StreamMetadata | None]
    ) -> StreamMetadata:
        record = await self._mirror.change(name, step)
        if record is None:
            raise StreamNotFound(f"there is no stream {name!r}")
        return record

    async def _check_nodes(self, nodes: Sequence[str]) -> None:
        """Raise InvalidArgument if a node does not exist. Reads the store if necessary, because
        this node may not have received the record of a new node yet."""
        known = self._mirror.directory.nodes
        if not known.keys() >= set(nodes):
            await self._mirror.load()
        for node in nodes:
            if node not in known:
                raise InvalidArgument(
                    f"there is no node {node!r} in this cluster",
                    hint=f"its nodes are {', '.join(sorted(known))}",
                )

    def _check_takes(self, node: str) -> None:
        directory = self._mirror.directory
        if node not in directory.live:
            raise Conflict(f"node {node} is down", hint="start the node, or name another node")
        if directory.nodes[node].draining:
            raise Conflict(
                f"node {node} is being drained",
                hint=f"`liftlog cluster undrain {node}` ends this, or name another node",
            )

    def _check_leavable(self, node: str) -> None:
        """Raise Conflict if a stream cannot leave the node."""
        left_by = {one.name for one in self._mirror.directory.nodes.values() if one.draining}
        stuck = []
        for name in self._held(node):
            try:
                self._without(self._mirror.records[name], {*left_by, node})
            except Conflict:
                stuck.append(name)
        if stuck:
            others = [one for one in candidates(self._mirror) if one.node != node]
            raise Conflict(
                f"node {node} cannot be drained: no other node can take its replicas of "
                f"{_named(stuck)}; there are {takers_text(others)}",
                hint="start another node; or give these streams fewer replicas, with "
                "`liftlog cluster move STREAM --replicas a,b`",
            )

    def _without(self, record: StreamMetadata, leaving: set[str]) -> tuple[str, ...]:
        """Return the nodes of the stream after the nodes `leaving` have left. If there are too few
        other nodes, a system stream may have fewer replicas, and gets more replicas later. Raises
        Conflict."""
        try:
            return replace_nodes(candidates(self._mirror), record.target, leaving)
        except Conflict:
            left = tuple(node for node in record.target if node not in leaving)
            if not record.system or not left:
                raise
            return left

    def _held(self, node: str) -> list[str]:
        """Return the streams with a replica on the node that no pending move removes."""
        return sorted(
            name
            for name, record in self._mirror.records.items()
            if node in record.members and not record.deleted
        )


def _allowed(after: StreamMetadata | None) -> StreamMetadata | None:
    """Return a changed record. As at the creation of a stream, first checks whether the durability
    permits the record's number of replicas. Raises InvalidArgument."""
    durability = "fsync" if after is None else after.settings.get("durability", "fsync")
    if after is not None and durability != "fsync" and len(after.target) > 1:
        raise InvalidArgument(
            f"stream {after.name!r} cannot have {len(after.target)} replicas with durability: "
            f"{durability}",
            hint=f"`liftlog stream update {after.name} --set durability=fsync` comes first",
        )
    return after


def _named(names: Sequence[str]) -> str:
    some = ", ".join(names[:_MAX_NAMED])
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"{len(names)} stream{'s' if len(names) > 1 else ''}: {some}{more}"


def _draining(wanted: bool) -> Callable[[Mapping[str, Any]], dict[str, Any] | None]:
    def step(value: Mapping[str, Any]) -> dict[str, Any] | None:
        return None if value.get("draining", False) is wanted else {**value, "draining": wanted}

    return step
