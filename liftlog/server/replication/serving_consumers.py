"""The states of a stream's consumers with acks, on the node that leads the stream. Changes of the
states are passed to the journal of this node and to the followers. They are confirmed when all
nodes in sync have them.

`liftlog.cluster.consumer_states` contains the rules. All positions are positions in the journal of
this node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from liftlog.cluster.consumer_states import Changes, Position, Snapshots
from liftlog.cluster.followers import Kind as Answer
from liftlog.cluster.leading import Leader
from liftlog.errors import Cancelled, LiftlogError, NotEnoughReplicas, NotLeader
from liftlog.protocol.consumer_states import ConsumerChanges, FetchConsumers
from liftlog.protocol.replication import MAX_PARKED_MS
from liftlog.server.journal import Change, ConsumerKey, Journal, StateVersion
from liftlog.server.journal.holding import JournalHolder
from liftlog.server.journal.records import Kind
from liftlog.server.journal.transfer import Sent, encode_change, encode_snapshot_records
from liftlog.server.replication.refusals import refusal_of
from liftlog.server.replication.unconfirmed import Unconfirmed

_PARKED_SECONDS = MAX_PARKED_MS / 1000
_BODY_BYTES = 1024 * 1024
"""Size in bytes. The change that makes an answer larger than this is the answer's last change."""
_TURN_CONSUMERS = 64
"""Number of snapshots between two pauses for the event loop."""


class ConsumerReply(Protocol):
    """The destination of the answer to one request. One of the two methods is called, exactly
    once."""

    def changes(self, header: ConsumerChanges, body: bytes) -> None: ...

    def refuse(self, error: Exception) -> None: ...


class ServedConsumers:
    """Serves the states of one stream's consumers to its followers. The stream's `ServedStream`
    creates and closes it. It belongs to the event loop."""

    def __init__(
        self,
        leader: Leader,
        incarnation: str,
        holder: JournalHolder,
        *,
        on_first: Callable[[], None],
    ) -> None:
        """`on_first` is called when there is a consumer for the first time in an epoch, so that the
        followers request the states."""
        self.leader = leader
        self.incarnation = incarnation
        self.is_closed = False
        self._holder = holder
        self._on_first = on_first
        self._loop = asyncio.get_running_loop()
        self._unwritten, self._unsynced = Unconfirmed(), Unconfirmed()
        self._parked: dict[str, tuple[FetchConsumers, ConsumerReply, asyncio.TimerHandle]] = {}
        self._sending: dict[str, asyncio.Task[None]] = {}
        self.snapshot_of: Callable[[str], Change | None] = lambda name: None
        """Function that returns the whole state of a consumer, with all changes that were passed to
        `write`. It returns None for a consumer that is not in memory. The state of such a consumer
        does not change."""
        self._watchers: list[Callable[[], None]] = []
        self._waiting: dict[asyncio.Future[None], int] = {}
        self._wakes_soon = False

    @property
    def has_consumers(self) -> bool:
        """True if the followers must ask for the states."""
        return self.leader.states.is_used

    def watch(self, confirmed: Callable[[], None]) -> None:
        """Call `confirmed` after each change of one of the positions, and at the end."""
        self._watchers.append(confirmed)

    # --- changes ---

    def write(self, change: Change) -> int:
        """Pass a change of a consumer to the journal and to the followers. Returns its position.
        Does nothing after `close`. Another node may then lead, and only that node's changes are
        valid."""
        journal = self._journal
        if self.is_closed:
            return journal.accepted_position
        change = self.numbered(change)
        position = journal.write([change])
        number = change.version.number
        self._unwritten.add(number, position)
        self._unsynced.add(number, position)
        return position

    def numbered(self, change: Change) -> Change:
        """Give a change its number, and pass it to the followers. The caller passes the result to
        the journal."""
        states, name = self.leader.states, change.key.consumer
        number = states.changed(name, is_deletion=change.kind is Kind.DELETED)
        change = change._replace(version=StateVersion(self.leader.epoch, number))
        states.keep(change, len(change.settings) + len(change.state) + len(name) + 64)
        self.leader.stir()
        if number == 1:
            self._loop.call_soon(self._on_first)
        self._wake_soon()
        return change

    def check(self) -> None:
        """Raise an error if nothing can be confirmed at present: NotLeader, NotEnoughReplicas."""
        if self.is_closed:
            raise self.over()
        if not self.leader.can_commit:
            raise NotEnoughReplicas(
                f"too few replicas of stream {self.leader.record.name} are in sync",
                hint="try again when more replicas are in sync: see `liftlog cluster status`",
            )

    def is_written(self, position: int) -> bool:
        """Return True if all nodes in sync have written the changes up to a position."""
        return self._unwritten.is_confirmed(position)

    def is_synced(self, position: int) -> bool:
        """Return True if all nodes in sync have synced the changes up to a position."""
        return self._unsynced.is_confirmed(position)

    def want_sync(self, position: int) -> None:
        """Make the followers sync all changes up to a position at once."""
        number = self._unsynced.number_at(position)
        if number:
            self.leader.states.want_sync(number)
            self._wake_soon()

    async def synced(self, position: int) -> None:
        """Wait until all nodes in sync have synced the changes up to a position. Raises NotLeader
        if another node may become the leader before that."""
        self.want_sync(position)
        self._confirm()
        if self.is_closed:
            raise self.over()
        if not self.is_synced(position):
            confirmed: asyncio.Future[None] = self._loop.create_future()
            self._waiting[confirmed] = position
            try:
                await confirmed
            finally:
                self._waiting.pop(confirmed, None)

    def _wake_soon(self) -> None:
        """Answer waiting requests at the end of this turn of the loop. The answers contain all
        changes of this turn."""
        if not self._wakes_soon:
            self._wakes_soon = True
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._wakes_soon = False
        if not self.is_closed:
            self._confirm()  # without followers, the journal of this node is sufficient
            self._answer(self.leader.states.woken(self._loop.time()))

    # --- followers ---

    def fetch(self, node: str, start: int, request: FetchConsumers, reply: ConsumerReply) -> None:
        """Answer the request of a follower, now or later."""
        before = self._take_parked(node)
        self._handle(node, start, request, reply)
        if before is not None:
            # At the end, because sending an answer may begin with the follower's next request.
            before.refuse(Cancelled("the follower has asked again"))

    def _handle(self, node: str, start: int, request: FetchConsumers, reply: ConsumerReply) -> None:
        if self._holder.problem is not None:  # this node does not know which consumers exist
            reply.refuse(self._holder.problem)
            return
        has = _position_of(request)
        now = self._loop.time()
        verdict = self.leader.states_fetched(node, start, request.epoch, has, now)
        self._confirm()
        if verdict.kind is Answer.PARK:
            timer = self._loop.call_later(_PARKED_SECONDS, self._expired, node)
            self._parked[node] = request, reply, timer
        elif verdict.kind is Answer.SEND:
            self._send(node, request, reply)
        else:
            reply.refuse(refusal_of(verdict.kind, request.epoch, self.leader))

    def _expired(self, node: str) -> None:
        self._answer(self.leader.states.woken(self._loop.time(), also=node))

    def _answer(self, nodes: list[str]) -> None:
        for node in nodes:
            parked = self._parked.pop(node, None)
            if parked is not None:
                request, reply, timer = parked
                timer.cancel()
                self._send(node, request, reply)

    def _take_parked(self, node: str) -> ConsumerReply | None:
        """Remove and return the parked request of a follower. The caller refuses it."""
        sending = self._sending.pop(node, None)
        if sending is not None:
            sending.cancel()
        parked = self._parked.pop(node, None)
        if parked is None:
            return None
        parked[2].cancel()
        return parked[1]

    def _send(self, node: str, request: FetchConsumers, reply: ConsumerReply) -> None:
        states = self.leader.states
        has, sync = _position_of(request), states.asked_to_sync(node)
        plan = states.plan(has)
        if isinstance(plan, Changes):
            assert has is not None
            self._send_changes(plan, has, sync, reply)
        else:
            work = self._send_snapshots(node, plan, sync, reply)
            task = self._sending[node] = self._loop.create_task(work)
            task.add_done_callback(partial(_refuse_cancelled, reply))

    def _send_changes(
        self, plan: Changes[Change], has: Position, sync: int, reply: ConsumerReply
    ) -> None:
        parts: list[bytes] = []
        size, number = 0, plan.number
        for change in plan.changes:
            parts.append(encode_change(Sent(change)))
            size += len(parts[-1])
            if size >= _BODY_BYTES:
                number = change.version.number
                break
        body = b"".join(parts)
        epoch = self.leader.epoch
        header = ConsumerChanges(epoch, has.base, number, number, sync, body_length=len(body))
        reply.changes(header, body)

    async def _send_snapshots(
        self, node: str, plan: Snapshots, sync: int, reply: ConsumerReply
    ) -> None:
        """Send the whole states of consumers: a snapshot of each consumer in memory, and the stored
        records of every other consumer."""
        leader = self.leader
        try:
            parts: list[bytes] = []
            sent = size = 0
            for name in plan.numbers:
                if sent % _TURN_CONSUMERS == _TURN_CONSUMERS - 1:
                    await asyncio.sleep(0)
                part = await self._snapshot(name)
                sent += 1
                parts.append(part)
                size += len(part)
                if size >= _BODY_BYTES:
                    break
            written, cursor = plan.reached(sent)
            if written == plan.number:
                parts += [
                    encode_change(Sent(self._deletion(name, number)))
                    for name, number in plan.deleted.items()
                ]
        except LiftlogError as error:
            reply.refuse(error)
        else:
            if self.is_closed or leader is not self.leader:
                reply.refuse(self.over())
            else:
                body = b"".join(parts)
                header = ConsumerChanges(
                    leader.epoch, plan.base, written, cursor, sync, body_length=len(body)
                )
                reply.changes(header, body)
        finally:
            if self._sending.get(node) is asyncio.current_task():
                del self._sending[node]

    def _deletion(self, name: str, number: int) -> Change:
        deleted = Change.deleted(ConsumerKey(self.incarnation, name))
        return deleted._replace(version=StateVersion(self.leader.epoch, number))

    async def _snapshot(self, name: str) -> bytes:
        """Return the whole state of a consumer; empty if it was deleted."""
        states, epoch = self.leader.states, self.leader.epoch
        while True:
            snapshot = self.snapshot_of(name)
            number = states.number_of(name)
            version = StateVersion(epoch, number)
            if snapshot is not None:
                return encode_change(Sent(snapshot._replace(version=version)))
            records = await self._journal.records_of(ConsumerKey(self.incarnation, name))
            if number == states.number_of(name):
                return encode_snapshot_records(records, version)

    # --- what is confirmed ---

    @property
    def is_waiting(self) -> bool:
        """True if there are changes that are not confirmed."""
        return bool(self._unsynced)

    def confirm(self) -> None:
        """Compute the confirmed changes again, because the in-sync set or a follower has
        changed."""
        self._confirm()

    def _confirm(self) -> None:
        if self.is_closed or not self.leader.confirm_states():
            return
        states = self.leader.states
        self._unwritten.confirm(states.written)
        self._unsynced.confirm(states.synced)
        for confirmed, position in self._waiting.items():
            if self.is_synced(position) and not confirmed.done():
                confirmed.set_result(None)
        for confirmed_now in self._watchers:
            confirmed_now()

    # --- epochs ---

    def lead_on(self, leader: Leader) -> None:
        """Continue in the next epoch, the epoch of `leader`. No change is confirmed in this epoch
        yet."""
        self._refuse_all()
        number = leader.states.number
        self._unwritten.renumber(number)
        self._unsynced.renumber(number)
        if self._waiting:
            leader.states.want_sync(number)
        self.leader = leader

    def close(self) -> None:
        """Write and confirm no more changes, because the leadership has ended."""
        if self.is_closed:
            return
        self.is_closed = True
        self._refuse_all()
        for confirmed in self._waiting:
            if not confirmed.done():
                confirmed.set_exception(self.over())
        for ended in self._watchers:
            ended()

    def _refuse_all(self) -> None:
        for node in [*self._sending]:
            self._sending.pop(node).cancel()
        parked, self._parked = self._parked, {}
        for _, reply, timer in parked.values():
            timer.cancel()
            reply.refuse(self.over())

    def over(self) -> NotLeader:
        """Return the error for waiting calls when the leadership has ended."""
        return NotLeader(f"{self.leader.node} no longer leads stream {self.leader.record.name}")

    @property
    def _journal(self) -> Journal:
        assert self._holder.opened is not None, "a consumer is created in the journal"
        return self._holder.opened


def _refuse_cancelled(reply: ConsumerReply, sending: asyncio.Task[None]) -> None:
    """Refuse a request if the task that answers it was cancelled. The task may have been cancelled
    before its first step."""
    if sending.cancelled():
        reply.refuse(Cancelled("the follower has asked again, or the leader has changed"))


def _position_of(request: FetchConsumers) -> Position | None:
    """Convert numbers from another node, which are not trusted."""
    numbers = request.position
    return Position(*numbers) if numbers is not None and len(numbers) == 4 else None
