"""Fetches records that this node has lost from the other replicas of the stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from liftlog.cluster.record import StreamMetadata
from liftlog.errors import Conflict, CorruptBatch, LiftlogError, RequestTimeout
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.messages import (
    DescribeStream,
    Fetch,
    FetchHeader,
    Message,
    StreamAnswer,
)
from liftlog.records.decode import iter_batches
from liftlog.server.metadata.mirror import Mirror
from liftlog.server.replication.peer_link import PeerLink

_FETCH_BYTES = 1024 * 1024
_ANSWER_SECONDS = 10.0
_NOT_LED = ("failed", "elsewhere", "follower")
"""States of a stream on a node that does not lead it. Such a node may not have found its own damage
yet."""


class ReplicaDonors:
    """Fetches records from the other nodes' own copies, up to the high watermarks of these copies.
    This is safe because committed records are the same on all nodes. See
    `liftlog.server.cleaning.mending.Donors`."""

    def __init__(
        self,
        mirror: Mirror,
        node: str,
        link_to: Callable[[str], PeerLink],
        copy_again: Callable[[str], None],
    ) -> None:
        self._mirror = mirror
        self._node = node
        self._link_to = link_to
        self.copy_again = copy_again

    def count(self, name: str) -> int:
        return len(self._others(name))

    def all_answer(self, name: str) -> bool:
        return all(self._link_to(node).peer is not None for node in self._others(name))

    async def fetch(
        self,
        name: str,
        incarnation: str,
        first: int,
        end: int,
        take: Callable[[memoryview], object],
        *,
        turn: int,
    ) -> str:
        problems: list[str] = []
        nodes = self._others(name)
        turn %= max(len(nodes), 1)
        for node in nodes[turn:] + nodes[:turn]:
            try:
                while first < end:
                    header, body = await self._ask(node, name, incarnation, first)
                    if (header.tombstones_removed_below or 0) > first:
                        # Records that the other node has deleted may still exist in this copy.
                        raise LiftlogError("it has removed tombstones there")
                    if header.next_offset <= first:
                        raise LiftlogError(f"it has no records from offset {first} on yet")
                    if body is not None:
                        await self._check(node, name, incarnation, first, body)
                        take(body)
                    first = header.next_offset
                return ""
            except LiftlogError as error:
                problems.append(f"node {node}: {error.message}")
        return "; ".join(problems) or "the stream has no other replica"

    def _others(self, name: str) -> list[str]:
        """Return the other nodes. Nodes in sync come first, because the remaining nodes may have
        fewer records."""
        record = self._mirror.records.get(name)
        if record is None or record.deleted:
            return []
        others = [node for node in record.members if node != self._node]
        return sorted(others, key=lambda node: node not in record.isr)

    async def _check(
        self, node: str, name: str, incarnation: str, first: int, body: memoryview
    ) -> None:
        """Check fetched records. Damaged records cannot be used. If there is damage, the other node
        determines the extent of its own damage, and repairs it later. Raises CorruptBatch,
        UnsupportedFormat."""
        try:
            for _ in iter_batches(body):
                pass
        except CorruptBatch:
            with contextlib.suppress(LiftlogError):
                # To answer this request, the node must examine the records.
                await self._ask(node, name, incarnation, first, columns=["offset"])
            raise

    async def _ask(
        self,
        node: str,
        name: str,
        incarnation: str,
        first: int,
        columns: list[str] | None = None,
    ) -> tuple[FetchHeader, memoryview | None]:
        message = Fetch(
            name,
            start=first,
            max_bytes=_FETCH_BYTES,
            min_bytes=0,
            incarnation=incarnation,
            replica=node,
            columns=columns,
        )
        exchange = await ask(self._link_to(node), message)
        if not isinstance(exchange.answer, FetchHeader):
            raise LiftlogError("it answered something else")
        return exchange.answer, exchange.body


async def check_whole(link: PeerLink, record: StreamMetadata) -> None:
    """Check the leader's copy before this node drops its own copy and fetches it again. The check
    is necessary because this node's copy may contain records that are damaged in the leader's copy.

    Raises Conflict if the leader reports damage, or if the leader of this epoch has not opened its
    copy yet. Raises LiftlogError if the leader does not answer.
    """
    answer = (await ask(link, DescribeStream(record.name))).answer
    info = answer.info if isinstance(answer, StreamAnswer) else None
    if (
        info is None
        or info.state in _NOT_LED
        or (info.incarnation, info.leader_epoch) != (record.incarnation, record.leader_epoch)
    ):
        raise Conflict(f"node {link.node} does not report the state of its copy")
    if info.quarantined:
        raise Conflict(f"the copy of node {link.node} is damaged as well")


def check_same_leader(present: StreamMetadata, checked: StreamMetadata) -> None:
    """Raise Conflict unless the leader whose copy was checked still leads."""
    if any(
        getattr(present, name) != getattr(checked, name)
        for name in ("incarnation", "leader", "leader_epoch")
    ):
        raise Conflict(f"node {checked.leader}, whose copy is whole, leads no longer")


async def ask(link: PeerLink, message: Message) -> Exchange:
    """Send one request and return its answer. Raises the error of the answer, ConnectionLost,
    RequestTimeout."""
    answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(_: Exchange) -> None:
        if not answered.done():
            answered.set_result(None)

    exchange = Exchange(on_done=done)
    link.request(message, exchange)
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            await answered
    except TimeoutError:
        raise RequestTimeout(f"node {link.node} does not answer") from None
    finally:
        if not exchange.done:
            link.give_up(exchange)
    if exchange.error is not None:
        raise exchange.error
    return exchange
