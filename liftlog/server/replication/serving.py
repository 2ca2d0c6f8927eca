"""One stream that this node leads: its followers' requests, and the commits that they allow.

`liftlog.cluster.leading` contains the rules. This module applies them to the log and to the
connections of the followers. The stream's gate performs the commits.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from liftlog.cluster.epochs import between
from liftlog.cluster.followers import FetchRequest, Kind
from liftlog.cluster.leading import Leader
from liftlog.cluster.record import Change, Mark, StreamMetadata
from liftlog.errors import (
    Cancelled,
    CorruptRange,
    LiftlogError,
    NotLeader,
    NotReady,
    OffsetOutOfRange,
    StaleIncarnation,
)
from liftlog.log import EncodedBatch, Log, LogSlice
from liftlog.log.files.manifest import epoch_before
from liftlog.log.read.reading import Gap
from liftlog.protocol.replication import MAX_PARKED_MS, Replica, Replicate
from liftlog.server.commits.gate import ReplicatedGate
from liftlog.server.journal.holding import JournalHolder
from liftlog.server.replication.refusals import refusal_of
from liftlog.server.replication.serving_consumers import ServedConsumers

logger = logging.getLogger("liftlog.server.replication")

_PARKED_SECONDS = MAX_PARKED_MS / 1000
_TOGETHER_SECONDS = 0.25
"""Requests of idle streams that were parked within this time (in seconds) are answered together. So
both nodes wake up less often. Other answers are not delayed."""
_TELL_SECONDS = 0.05
_MAX_BODY_BYTES = 16 * 1024 * 1024
MAX_KEPT_BYTES = 256 * 1024
"""Number of bytes that each stream keeps in memory. Larger answers are sent from the files to the
socket without a copy."""


class Reply(Protocol):
    """The destination of the answer to one request. Either `replica` or `refuse` is called, exactly
    once."""

    @property
    def may_copy(self) -> bool:
        """Return False while many bytes wait to be sent to the follower. In that case the body is
        not copied into memory."""
        ...

    def replica(self, header: Replica, body: LogSlice | bytes | None) -> None:
        """Send the answer at once; takes ownership of `body`."""
        ...

    def refuse(self, error: Exception) -> None: ...


class CatchUpPace:
    """Limits the total rate at which replicas that are not in sync fetch from this node. Belongs to
    the event loop."""

    def __init__(self, max_bytes_per_second: float) -> None:
        self._rate = max_bytes_per_second
        self._free_at = 0.0

    def wait_seconds(self, now: float) -> float:
        """Return the time until the next answer may be sent."""
        return max(0.0, self._free_at - now)

    def sent(self, size_bytes: int, now: float) -> None:
        """Note that an answer of this size is about to be sent."""
        self._free_at = max(self._free_at, now) + size_bytes / self._rate


class _Newest:
    """The last appended records, as bytes. A follower that does not lag gets these bytes together
    with the answer's header. This needs no access to files."""

    def __init__(self) -> None:
        self._groups: deque[_Group] = deque()
        self._size_bytes = 0

    def add(self, batches: Sequence[EncodedBatch], high_watermark: int) -> None:
        """Add appended batches."""
        if not batches:
            return
        self.drop_below(high_watermark)
        groups = self._groups
        data = [batch.data for batch in batches]
        group = _Group(batches[0].base_offset, batches[-1].next_offset, data, sum(map(len, data)))
        if groups and groups[-1].next_offset != group.base_offset:
            groups.clear()
            self._size_bytes = 0
        groups.append(group)
        self._size_bytes += group.size_bytes
        while self._size_bytes > MAX_KEPT_BYTES:
            self._size_bytes -= groups.popleft().size_bytes

    def drop_below(self, high_watermark: int) -> None:
        """Drop committed records, because the in-sync replicas already have them."""
        groups = self._groups
        while groups and groups[0].next_offset <= high_watermark:
            self._size_bytes -= groups.popleft().size_bytes

    def read(self, offset: int, max_bytes: int) -> bytes | None:
        """Return the groups from `offset` on. Returns None if no group begins at `offset`, or if
        the groups do not fit."""
        found: list[bytes | bytearray | memoryview] = []
        for group in reversed(self._groups):
            found[:0] = group.data
            if group.base_offset <= offset:
                body = b"".join(found)
                return body if group.base_offset == offset and len(body) <= max_bytes else None
        return None


class _Group(NamedTuple):
    base_offset: int
    next_offset: int
    data: Sequence[bytes | bytearray | memoryview]
    size_bytes: int


@dataclass(slots=True)
class _Parked:
    request: Replicate
    reply: Reply
    timer: asyncio.TimerHandle


class ServedStream:
    """One stream that this node leads, and the requests of its followers. Belongs to the event
    loop.

    `gate` is the gate of its commits. `ended` is called once, with the reason why the current epoch
    has ended on this node.
    """

    def __init__(
        self,
        leader: Leader,
        log: Log,
        *,
        pace: CatchUpPace,
        ended: Callable[[str], None],
        holder: JournalHolder,
        expects_repair: Callable[[int, int], bool] = lambda first, end: False,
    ) -> None:
        """All streams that this node leads share `pace`. `holder` contains the journal of
        consumers. `expects_repair` returns True if damage in a range is about to be repaired."""
        self.leader = leader
        self._log = log
        self._pace = pace
        self._ended = ended
        self._expects_repair = expects_repair
        self._loop = asyncio.get_running_loop()
        self._parked: dict[str, _Parked] = {}
        self._newest = _Newest()
        self._looking: set[asyncio.Future[None]] = set()
        self._confirming: list[tuple[int, asyncio.Future[None]]] = []
        self.consumers = ServedConsumers(leader, log.incarnation, holder, on_first=self.hear_again)
        self.gate = ReplicatedGate(
            leader,
            log_end=lambda: log.log_end_offset,
            keep=self._keep,
            now=self._loop.time,
            wake=self._answer,
            ended=self._over,
        )

    def _keep(self, batches: Sequence[EncodedBatch]) -> None:
        if batches:
            now_ns = self._log.environment.clock.monotonic_ns()
            self._log.arrivals.note(batches[0].base_offset, batches[0].base_timestamp_ns, now_ns)
        self._newest.add(batches, self.leader.high_watermark)

    def _over(self, reason: str) -> None:
        self.close()
        self._ended(reason)

    # --- followers ---

    def fetch(self, node: str, start: int, request: Replicate, reply: Reply) -> None:
        """Answer the request of a follower, now or later."""
        if request.incarnation != self._log.incarnation:
            reply.refuse(StaleIncarnation(f"stream {request.stream} was created again"))
            return
        asked = FetchRequest(
            node,
            start,
            request.epoch,
            request.offset,
            request.last_epoch,
            request.side_version,
            _mark_from(request.record),
            _mark_from(request.leader_record),
            request.full,
            bool(request.old_consumers),
        )
        before = self._parked.pop(node, None)
        if self._log.log_end_offset > self.leader.log_end:
            # A writer thread has appended records, and the loop has not been notified yet. The read
            # below uses the log as it is now.
            self.gate.written(())
        verdict = self.gate.fetched(asked)
        self._newest.drop_below(self.leader.high_watermark)
        if self._confirming:
            self._tell_confirmed()
        if self.consumers.is_waiting:
            self.consumers.confirm()
        kind = verdict.kind
        if kind is Kind.PARK:
            until = self._loop.time() + _PARKED_SECONDS
            timer = self._loop.call_at(until - until % _TOGETHER_SECONDS, self.gate.expired, node)
            self._parked[node] = _Parked(request, reply, timer)
            if self._is_to_fetch_consumers(node, start, request):
                self._loop.call_later(_TELL_SECONDS, self.gate.expired, node)
        elif kind is Kind.SEND and node in self.leader.record.isr:
            self._send(request, reply)
        elif kind is Kind.SEND:
            self._send_in_time(node, request, reply)
        elif kind is Kind.DIVERGING:
            reply.replica(self._header(request, diverging=[verdict.epoch, verdict.end]), None)
        else:
            reply.refuse(refusal_of(kind, request.epoch, self.leader))
        if before is not None:  # done last: sending may begin with the next request
            before.timer.cancel()
            before.reply.refuse(Cancelled("the follower has asked again"))

    def _is_to_fetch_consumers(self, node: str, start: int, request: Replicate) -> bool:
        """Return True if an answer must ask the follower to request the states of consumers."""
        is_able = request.old_consumers is not None
        return (
            is_able
            and self.consumers.has_consumers
            and not self.leader.states.is_fetched_by(node, start)
        )

    def _send_in_time(self, node: str, request: Replicate, reply: Reply) -> None:
        """Answer a follower that is not in sync, as soon as the allowed rate permits the answer. No
        ack waits for this follower, so publishers and in-sync replicas have priority."""
        seconds = self._pace.wait_seconds(self._loop.time())
        if seconds:
            timer = self._loop.call_later(seconds, self._send_late, node)
            self._parked[node] = _Parked(request, reply, timer)
        else:
            self._send(request, reply, is_paced=True)

    def _send_late(self, node: str) -> None:
        parked = self._parked.pop(node)
        self._send_in_time(node, parked.request, parked.reply)

    def hear_again(self) -> None:
        """Answer all requests that wait for new records. The followers then send the next request
        at once, which shows that they still follow."""
        for node in list(self._parked):
            self.gate.expired(node)

    def lost(self, node: str) -> None:
        """Note that the connection of `node` has been lost for longer than a reconnection takes."""
        self._drop_parked(node)
        self.gate.lost(node)

    # --- the metadata ---

    def propose(self, stopping: Collection[str] = ()) -> Change | None:
        """Return a change of the in-sync set that is due; None if none is due. Nodes in `stopping`
        are not added to the set."""
        return self.leader.propose(self._loop.time(), stopping)

    def adopt(self, record: StreamMetadata) -> None:
        """Adopt newer metadata of the stream. If the metadata end this epoch, this node no longer
        leads the stream when the call returns."""
        before = self.leader.record
        self.gate.adopt(record)
        if record.version > before.version and not self.leader.resigned:
            # A stopping node has left the set and sends no more requests, so it must not be added
            # again.
            for node in set(before.isr).difference(record.isr):
                self.lost(node)
            self.gate.tell_of_record()
        self._tell_confirmed()
        self.consumers.confirm()

    def lead_on(self, leader: Leader, ended: Callable[[str], None]) -> None:
        """Continue in the next epoch, the epoch of `leader`. The log has begun this epoch, and has
        not changed otherwise. The followers' requests in this epoch commit the records that wait
        for followers."""
        self._refuse_parked()  # these requests belong to the previous epoch
        self.leader.resign()
        self.leader = self.gate.leader = leader
        self.consumers.lead_on(leader)
        self._ended = ended

    @property
    def is_quiet(self) -> bool:
        """True if there is nothing to copy and nothing to propose before the next event."""
        leases, leader = self._log.leases, self.leader
        is_copied = leases.are_known and leases.side_state.version == leader.side_version
        return is_copied and leader.is_settled

    # --- the side state ---

    def side_changed(self) -> None:
        """If the side state has changed, send it to the followers at once. It is already durable on
        this node."""
        version = self._log.leases.side_state.version
        if version != self.leader.side_version:
            self._answer(self.leader.side_changed(version, self._loop.time()))
            self._tell_confirmed()

    async def side_confirmed(self) -> None:
        """Wait until the current side state cannot be lost even if this node stops leading. Raises
        NotLeader if another node may become the leader before that."""
        self.side_changed()
        version = self.leader.side_version
        if self.leader.resigned:
            raise NotLeader(f"{self.leader.node} no longer leads stream {self._log.name}")
        if version > self.leader.side_confirmed:
            confirmed: asyncio.Future[None] = self._loop.create_future()
            self._confirming.append((version, confirmed))
            await confirmed

    def _tell_confirmed(self) -> None:
        reached, waiting = self.leader.side_confirmed, self._confirming
        self._confirming = [one for one in waiting if one[0] > reached]
        for version, confirmed in waiting:
            if version <= reached and not confirmed.done():
                confirmed.set_result(None)

    def tombstone_bound(self, forget_after: float) -> int:
        """Return the offset below which every replica has all tombstones. Replicas that have been
        silent for `forget_after` seconds are ignored."""
        known = self._log.leases.tombstone_bound
        return self.leader.confirmed_by_all(self._loop.time(), forget_after, known)

    def close(self) -> None:
        """Send no more answers, because the leadership has ended."""
        self._refuse_parked()
        self.consumers.close()
        confirming, self._confirming = self._confirming, []
        for _, confirmed in confirming:
            if not confirmed.done():
                confirmed.set_exception(
                    NotLeader(f"{self.leader.node} no longer leads stream {self._log.name}")
                )
        for looking in self._looking:
            looking.cancel()

    # --- parts ---

    def _answer(self, nodes: list[str]) -> None:
        for node in nodes:
            self._answer_parked(node)

    def _answer_parked(self, node: str) -> None:
        parked = self._parked.pop(node, None)
        if parked is not None:
            parked.timer.cancel()
            self._send(parked.request, parked.reply)

    def _drop_parked(self, node: str) -> None:
        parked = self._parked.pop(node, None)
        if parked is not None:
            parked.timer.cancel()
            parked.reply.refuse(Cancelled("the follower has asked again"))

    def _refuse_parked(self) -> None:
        parked, self._parked = self._parked, {}
        for one in parked.values():
            one.timer.cancel()
            one.reply.refuse(refusal_of(Kind.NOT_LEADER, one.request.epoch, self.leader))

    def _send(
        self, request: Replicate, reply: Reply, *, looked: bool = False, is_paced: bool = False
    ) -> None:
        max_bytes = max(1, min(request.max_bytes, _MAX_BODY_BYTES))
        body = self._newest.read(request.offset, max_bytes) if reply.may_copy else None
        if body:
            if is_paced:
                self._pace.sent(len(body), self._loop.time())
            reply.replica(self._header(request, body_length=len(body)), body)
            return
        try:
            found = self._log.read_replica(request.offset, max_bytes)
        except CorruptRange as damage:
            if looked:
                reply.refuse(damage)
            else:
                self._look(request, reply, damage.first_offset, damage.next_offset)
            return
        except OffsetOutOfRange:
            # Retention or a restart of the log has removed the offset; `first_stored` tells the
            # follower.
            reply.replica(self._header(request), None)
            return
        except LiftlogError as error:
            reply.refuse(error)
            return
        if found is None:
            reply.replica(self._header(request), None)
        elif isinstance(found, Gap) and self._expects_repair(found.first_offset, found.next_offset):
            reply.refuse(NotReady(f"offset {found.first_offset} is being repaired from a replica"))
        elif isinstance(found, Gap):
            epochs = between(self.leader.epochs, found.first_offset, found.next_offset)
            gap = {
                "next": found.next_offset,
                "reason": found.reason,
                "loss": found.is_loss,
                "epochs": [list(one) for one in epochs],
            }
            reply.replica(self._header(request, gap=gap), None)
        elif request.corrupt and not looked:
            with found:
                first, end = found.first_offset, found.next_offset
            self._look(request, reply, first, end)
        else:
            if is_paced:
                self._pace.sent(found.length, self._loop.time())
            reply.replica(self._header(request, body_length=found.length), found)

    def _look(self, request: Replicate, reply: Reply, first: int, end: int) -> None:
        """Handle new damage: determine its extent in a thread. Either this node has found the
        damage, or a follower has found it in the bytes that it received."""

        def done(job: asyncio.Future[None]) -> None:
            self._looking.discard(job)
            error = None if job.cancelled() else job.exception()
            if job.cancelled():
                reply.refuse(refusal_of(Kind.NOT_LEADER, request.epoch, self.leader))
            elif isinstance(error, Exception):
                reply.refuse(error)
            else:
                self._send(request, reply, looked=True)

        job = self._loop.run_in_executor(None, self._log.quarantine_damage, first, end)
        self._looking.add(job)
        job.add_done_callback(done)

    def _header(
        self,
        request: Replicate,
        *,
        diverging: list[int] | None = None,
        gap: dict[str, Any] | None = None,
        body_length: int = 0,
    ) -> Replica:
        log, leader = self._log, self.leader
        manifest = log.view.manifest
        first_stored = log.view.first_stored_offset
        return Replica(
            request.epoch,
            request.offset,
            request.last_epoch,
            leader.high_watermark,
            log.log_end_offset,
            first_stored,
            diverging,
            gap,
            manifest.tombstones_removed_below,
            manifest.log_start_offset,
            epoch_before(manifest.epochs, first_stored),
            leader.record.version,
            None if leader.side_version == request.side_version else self._side_state(),
            body_length=body_length,
            record=self._record_for(request),
            record_checksum=leader.record.checksum,
            has_consumers=self.consumers.has_consumers,
        )

    def _record_for(self, request: Replicate) -> bytes | None:
        """Return the metadata record if the answer must contain it; otherwise None."""
        told = _mark_from(request.leader_record)
        leader = self.leader
        is_to_know = leader.tells_record(_mark_from(request.record), told)
        return leader.record.to_json() if is_to_know else None

    def _side_state(self) -> dict[str, Any]:
        """Return the current side state. It may be newer than the side state that is being
        confirmed."""
        side = self._log.leases.side_state
        return {**side.to_dict(), "version": side.version, "tombstone_bound": side.tombstone_bound}


def _mark_from(value: list[int] | None) -> Mark | None:
    """Convert a value from another node, which is not trusted. Returns None if its form is
    wrong."""
    return (value[0], value[1]) if value is not None and len(value) == 2 else None
