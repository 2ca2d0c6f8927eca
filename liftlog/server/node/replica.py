"""One replicated stream on this node, in the role that its newest metadata record gives it.

One task follows the record, one version at a time: it changes the `Role` and the `CopyOnDisk`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from liftlog.cluster import transitions
from liftlog.cluster.record import Follow, Lead, Leave, Register, StreamMetadata, role_of
from liftlog.errors import Conflict, LiftlogError, MetadataUnavailable, StorageError
from liftlog.server.commits.host import StreamHost
from liftlog.server.node.copy_on_disk import CopyOnDisk
from liftlog.server.node.handing_over import LOOK_SECONDS
from liftlog.server.node.local_node import LocalNode
from liftlog.server.node.role import Role
from liftlog.server.streams.description import why_broken

logger = logging.getLogger("liftlog.server.replication")

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
_LEAVE_SECONDS = 5.0
_STALLED_SECONDS = 1.0
"""If a task has been blocked on the disk for longer than this time (in seconds), it can no longer
end its role in time."""


class Replica:
    """One replica. Belongs to the event loop. `run` follows the record until the stream has left
    this node."""

    def __init__(self, name: str, node: LocalNode) -> None:
        self.name = name
        self._node = node
        self._me = node.member.name
        self.copy = CopyOnDisk(name, node)
        self.role = Role(name, node, self.copy, self.wake)
        self._remembered: tuple[object, ...] = ()
        """The leader, replicas and in-sync set that this node's disk has stored."""
        self._remembers_since: float | None = None
        """The time at which the current write of leader, replicas and in-sync set to the disk
        began; None if no write is in progress."""
        self._wake = asyncio.Event()
        self.opened = asyncio.Event()
        """Event that is set when the log of the newest stream of this name was opened, or when
        opening it has failed."""
        self._newest = self._looked_at = ""  # incarnations
        self._done_version = 0
        self._doing: list[tuple[int, asyncio.Future[None]]] = []
        self._is_leaving = False
        self._is_aside = False
        self._is_to_copy_again = False
        self._goes_over_to: StreamMetadata | None = None

    def record_changed(self, record: StreamMetadata) -> None:
        """Note a newer record, which may describe another stream of the same name."""
        if record.incarnation != self._newest:
            self._newest = record.incarnation
            self.opened.clear()
        if record.leader != self._me and self.waits_for_disk_seconds >= _STALLED_SECONDS:
            self._stop_taking_messages()
        self._wake.set()

    @property
    def waits_for_disk_seconds(self) -> float:
        """The time, in seconds, for which the next step of the role has waited for the disk; 0.0 if
        no step waits."""
        host, since = self._node.hosts.hosts.get(self.name), self._remembers_since
        if since is None and (host is None or not host.turns.is_taken):
            return 0.0  # this property is read once a second for each of a thousand streams
        seconds = 0.0 if host is None else host.turns.taken_seconds
        return seconds if since is None else max(seconds, time.monotonic() - since)

    def _stop_taking_messages(self) -> None:
        """Stop receiving messages, because another node leads and this node's disk hangs. The role
        can end only when the disk responds again. Until then, this node would receive messages in
        place of other members of the queue group, and would never answer them."""
        host = self._node.hosts.hosts.get(self.name)
        if self.role.led is not None and host is not None:
            self.role.stop_leading("another node leads")
            self._node.spawn(self._detach(host))

    async def _detach(self, host: StreamHost) -> None:
        await self._node.hosts.attachments.detach(host)

    def wake(self) -> None:
        """Check the record again, because an event has occurred that the stream may have waited
        for."""
        self._wake.set()

    def stand_aside(self) -> None:
        """Ignore newer records, because another process runs as this node."""
        self._is_aside = True
        self._wake.set()

    def copy_again(self) -> None:
        """Drop the copy on this node, and fetch it again from the leader. This is done as soon as
        another node leads and acks do not need this copy."""
        self._is_to_copy_again = True
        self._wake.set()

    def give_up(self, stored: StreamMetadata) -> None:
        """Discard this node's record of the stream. Adopt `stored` or a successor of `stored`, with
        an empty copy."""
        self._goes_over_to = stored
        self._wake.set()

    def _note_opened(self) -> None:
        if self._looked_at == self._newest:
            self.opened.set()

    async def does(self, version: int) -> None:
        """Wait until this node has adopted this version of the record, or a newer version."""
        if self._done_version < version:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._doing.append((version, done))
            await done

    def _note_done(self, record: StreamMetadata) -> None:
        self._done_version = record.version
        doing, self._doing = self._doing, []
        for version, done in doing:
            if version > record.version:
                self._doing.append((version, done))
            elif not done.done():
                done.set_result(None)

    async def run(self) -> bool:
        """Follow the record. Returns True when the stream has left this node. Returns False when
        the node stops or stands aside. Also returns False after a defect; the defect is then in
        `hosts.broken`."""
        pause, broken, told = _FIRST_PAUSE_SECONDS, self._node.hosts.broken, ""
        await self._node.hosts.journal.was_opened()  # every role needs the states of the consumers
        while not self._ends():
            self._wake.clear()
            try:
                if await self._follow_record():
                    return True
                pause = _FIRST_PAUSE_SECONDS
                if told and broken.get(self.name) == told:
                    del broken[self.name]
            except LiftlogError as error:
                if self._is_aside:
                    return False
                logger.error("role-not-taken stream=%s error=%s", self.name, error)  # noqa: TRY400
                self._note_opened()
                if not isinstance(error, MetadataUnavailable):
                    broken[self.name] = told = why_broken(error)
                if isinstance(error, StorageError):
                    await self._stop_being_waited_for()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._wake.wait()
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                continue
            except Exception as error:  # a supervisor: the other streams continue
                logger.exception("role-failed stream=%s", self.name)
                broken[self.name] = f"internal error: {error!r}"
                self._note_opened()
                return False
            if self.role.led is not None or self.role.followed is not None:
                self._note_opened()
            await self._wake.wait()
        return False

    def _ends(self) -> bool:
        return self._is_leaving or self._is_aside

    async def _stop_being_waited_for(self) -> None:
        """Leave the in-sync set if this node cannot follow the leader because its disk is full or
        fails. Otherwise acks of the leader would wait for this node until `lag_max`. When the
        fetches of this node have caught up, the leader adds this node again. Does not raise
        LiftlogError."""
        known = self._node.mirror.records.get(self.name)
        if self.role.followed is not None or known is None or self._me not in known.isr:
            return  # a node that fetches reports the full disk to the leader in its requests

        def step(present: StreamMetadata) -> StreamMetadata | None:
            if self._me not in present.isr or present.leader in (None, self._me):
                return None
            return transitions.fence(present, {self._me})

        try:
            record = await self._node.mirror.change(self.name, step)
        except (MetadataUnavailable, Conflict) as error:
            logger.warning("in-sync-set-not-left stream=%s error=%s", self.name, error)
            return
        if record is not None and record.leader is not None and self._me not in record.isr:
            logger.warning("in-sync-set-left stream=%s leader=%s", self.name, record.leader)
            await self._node.handovers.have_look(record.leader, record)

    async def _follow_record(self) -> bool:
        """Take the role that the stream's metadata gives to this node, once. Returns True if the
        stream has left this node."""
        if self._goes_over_to is not None:
            stored, self._goes_over_to = self._goes_over_to, None
            self.wake()  # then apply the record again, whatever the result is
            await self.role.end()
            await self.copy.go_over(stored)
            return False
        record = self._node.mirror.records.get(self.name)
        if record is None:
            return False  # this node does not accept the records that the store has returned
        self._looked_at = record.incarnation
        host = self._node.hosts.hosts.get(self.name)
        if host is not None and host.log.incarnation != record.incarnation:
            await self.role.end()  # the stream was deleted and created again
            self._node.hosts.journal.stream_deleted(host.log.incarnation)
        resigned = self.role.resigned_epoch(record.incarnation)
        wanted = role_of(record, self._me, self._node.member.start, resigned_epoch=resigned)
        await self._remember(record)
        if isinstance(wanted, Leave):
            await self.role.end()
            await self.copy.leave(record)
            self._node.hosts.journal.stream_deleted(record.incarnation)
            return True
        if isinstance(wanted, Register):
            await self.role.end()
            await self.copy.register(record)
        elif isinstance(wanted, Lead):
            await self.role.lead(record, wanted.epoch)
        elif isinstance(wanted, Follow) and await self._may_drop_copy(record):
            self.wake()  # then apply the record again, whatever the result is
            await self.role.end()
            await self.copy.drop(record)
            return False
        else:
            await self.role.follow(record)
        self._note_done(record)
        await self.role.adopt_settings(record)
        return False

    async def _may_drop_copy(self, record: StreamMetadata) -> bool:
        """Return True if the copy must be dropped and can be dropped now."""
        if not self._is_to_copy_again:
            return False
        self._is_to_copy_again = False  # a caller that still needs the new copy asks again
        return await self.copy.may_drop(record)

    async def _remember(self, record: StreamMetadata) -> None:
        """Store the record on this node. This happens before the node follows another leader, or
        relies on other replicas or another in-sync set. So this node still has the record if the
        metadata store loses it, even after a restart."""
        place = (
            *(record.incarnation, record.leader_epoch, record.leader, record.replicas),
            *(record.isr, record.eligible),
        )
        if place != self._remembered:
            self._remembers_since = time.monotonic()
            try:
                await self._node.mirror.remembered()
            finally:
                self._remembers_since = None
            self._remembered = place

    async def leave(self) -> None:
        """Leave the in-sync set and stop leading, before a planned stop. On return the leader no
        longer waits for this node, unless the change could not be stored. Does not raise."""
        known = self._node.mirror.records.get(self.name)
        if known is not None and not known.deleted:
            # First apply the newest record if it makes this node a follower. Otherwise acks of the
            # stream would wait for this node.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self.does(known.version)
        self._is_leaving = True

        def step(present: StreamMetadata) -> StreamMetadata | None:
            if len(present.members) > 1 and not present.deleted:
                return transitions.fence(present, {self._me})
            return None

        try:
            async with asyncio.timeout(_LEAVE_SECONDS):
                record = await self.role.change_until_known(step)
        except (TimeoutError, Conflict) as error:
            reason = str(error) or "the metadata store does not answer"
            logger.warning("in-sync-set-not-left stream=%s error=%s", self.name, reason)
            return
        followed = self.role.followed
        if followed is not None:
            followed.close()  # a fetch would put this node back into the in-sync set
        # Acks wait for this node until the leader has received this change.
        if record is not None and record.leader not in (None, self._me):
            await self._node.handovers.have_look(str(record.leader), record)
