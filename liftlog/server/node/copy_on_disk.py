"""The copy of one replicated stream on this node's disk. Opens it, checks it against the stream's
metadata record, and drops it."""

from __future__ import annotations

import asyncio
import logging

from liftlog.cluster import transitions
from liftlog.cluster.election import LogEnd
from liftlog.cluster.epochs import last_epoch
from liftlog.cluster.record import StreamMetadata
from liftlog.errors import Conflict, LiftlogError
from liftlog.log import Log
from liftlog.server.node import copies
from liftlog.server.node.local_node import LocalNode
from liftlog.server.replication.repair import check_same_leader, check_whole

logger = logging.getLogger("liftlog.server.replication")


class CopyOnDisk:
    """One copy. Belongs to the event loop. While the replica has a role, the host of the stream
    uses the log."""

    def __init__(self, name: str, node: LocalNode) -> None:
        self._name = name
        self._node = node
        self._me = node.member.name
        self._log: Log | None = None
        """The log while it is open and no role uses it."""
        self._is_whole = False
        """True if the log was complete when it was opened. False if the log lacked, or may have
        lacked, records that this node has confirmed."""

    @property
    def log_end(self) -> LogEnd | None:
        """The end of the copy; None if the copy cannot be served."""
        host, log = self._node.hosts.hosts.get(self._name), self._present
        if log is None or (host is not None and host.failure):
            return None
        return LogEnd(last_epoch(log.view.manifest.epochs, log.log_end_offset), log.log_end_offset)

    @property
    def is_given_up(self) -> bool:
        """True if the copy must be dropped, because its records belong to abandoned metadata."""
        return (
            self._present is not None and self._present.view.manifest.incomplete == copies.GIVEN_UP
        )

    @property
    def _present(self) -> Log | None:
        host = self._node.hosts.hosts.get(self._name)
        return self._log if host is None else host.log

    # --- opening ---

    async def open(self, record: StreamMetadata) -> tuple[Log, bool]:
        """Open or create the log. Returns the log, and False if it may lack records that this
        node has confirmed."""
        if self._log is not None and self._log.incarnation != record.incarnation:
            await self.close()
        if self._log is None:
            self._log, self._is_whole = await self._open_copy(record)
        await self._node.mirror.hold(record)
        return self._log, self._is_whole

    async def _open_copy(self, record: StreamMetadata) -> tuple[Log, bool]:
        member, data_dir = self._node.member, self._node.data_dir
        has_held = self._node.mirror.has_held(record)
        is_of_this_start = record.starts.get(self._me) == member.start
        if has_held and is_of_this_start and record.must_keep(self._me):
            await asyncio.to_thread(copies.check_is_there, data_dir, record)
        log, is_new = await asyncio.to_thread(copies.open_copy, data_dir, record)
        if not is_new:
            return log, member.is_same
        # A new copy has all records if there was no copy on this node before. Otherwise the earlier
        # copy is lost.
        is_whole = is_of_this_start or (member.is_same and has_held is False)
        if not is_whole and record.must_keep(self._me):
            logger.warning("replica-lost stream=%s path=%s", self._name, log.directory)
        return log, is_whole

    async def close(self) -> None:
        """Close the log if it is open and no role uses it."""
        if self._log is not None:
            log, self._log = self._log, None
            await asyncio.to_thread(log.close)

    def hand_out(self) -> None:
        """Note that a role uses the log from now on. The role closes the log when it ends."""
        self._log = None

    async def open_for_role(self, record: StreamMetadata) -> Log:
        """Open the log before a role begins. If the copy is marked as incomplete, handle the mark
        first."""
        log, _ = await self.open(record)
        if log.view.manifest.incomplete:  # an earlier attempt to adopt the new record has failed
            await self._judge_mark(log, record)
            log, _ = await self.open(record)
        return log

    # --- which records it has ---

    async def register(self, record: StreamMetadata) -> None:
        """Register this start of the node in the stream's metadata. The metadata then also states
        whether the copy has all records that this node has confirmed."""
        log, is_whole = await self.open(record)
        member = self._node.member

        def step(present: StreamMetadata) -> StreamMetadata | None:
            had = is_whole and member.had(present.starts.get(self._me, 0))
            # If this node is the only replica, an operator has repaired the copy. No other node
            # could have the records that the mark reports as missing.
            may_lack = log.view.manifest.incomplete and present.members != (self._me,)
            return transitions.register(present, self._me, member.start, clean=had and not may_lack)

        after = await self._node.mirror.change(self._name, step)
        if after is not None:
            await self._judge_mark(log, after)

    async def _judge_mark(self, log: Log, record: StreamMetadata) -> None:
        """Handle the mark of an incomplete copy, after the record shows that the copy is
        incomplete. A copy of abandoned metadata is dropped. Raises Conflict if no other copy is
        complete."""
        if log.view.manifest.incomplete != copies.GIVEN_UP or record.must_keep(self._me):
            if log.view.manifest.incomplete:
                await asyncio.to_thread(log.structure.note_complete)
        elif record.isr or record.eligible:
            await self._remove_given_up(record)
        else:
            raise Conflict(f"the copy is kept, since no other one is whole: {copies.GIVEN_UP}")

    # --- dropping it ---

    async def may_drop(self, record: StreamMetadata) -> bool:
        """Return True if acks do not need this copy, and the leader's copy is complete."""
        try:
            transitions.discard(record, self._me)
            link = self._node.link_to(str(record.leader))
            await check_whole(link, record)
        except LiftlogError as error:
            logger.warning("copy-kept stream=%s reason=%s", self._name, error)
            return False
        return True

    async def drop(self, checked: StreamMetadata) -> None:
        """Leave the in-sync set in the stored record, then remove the copy. The new copy starts
        empty. If the node stops between the two steps, it has one of the two copies, and is not in
        sync. `checked` names the leader whose copy is complete; under another leader, the copy may
        be incomplete."""

        def left(present: StreamMetadata) -> StreamMetadata | None:
            check_same_leader(present, checked)
            return transitions.discard(present, self._me)

        await self.close()
        try:
            after = await self._node.mirror.change(self._name, left)
        except Conflict as error:
            logger.warning("copy-kept stream=%s reason=%s", self._name, error)
            return
        await self._node.mirror.remembered()
        if after is not None and self._node.mirror.records[self._name] == after:
            logger.warning("copy-dropped stream=%s epoch=%d", self._name, after.leader_epoch)
            await asyncio.to_thread(copies.remove_copy, self._node.data_dir, after)

    async def go_over(self, stored: StreamMetadata) -> None:
        """Drop the copy after the record shows that the copy does not count, and after this node
        has stored that record. The copy is marked first, so that the node also drops it after a
        restart."""
        log, _ = await self.open(self._node.mirror.known[self._name])
        before = log.view.manifest.incomplete
        await asyncio.to_thread(log.structure.note_incomplete, copies.GIVEN_UP)
        after = None
        try:
            after = await self._node.mirror.go_over(self._name, self._me, stored)
        except Conflict as error:
            logger.warning("copy-kept stream=%s reason=%s", self._name, error)
        finally:  # the guard retries; the known record decides until then
            if after is None:
                await asyncio.to_thread(log.structure.note_incomplete, before)
        if after is not None:
            await self._remove_given_up(after)

    async def _remove_given_up(self, record: StreamMetadata) -> None:
        """Remove the copy. The stream has used some epochs twice, so a node could mistake records
        of this copy for records of the new epochs."""
        await self._node.mirror.remembered()
        await self.close()
        await asyncio.to_thread(copies.remove_copy, self._node.data_dir, record)
        logger.warning(
            "copy-given-up stream=%s version=%d epoch=%d",
            self._name,
            record.version,
            record.leader_epoch,
        )

    async def leave(self, record: StreamMetadata) -> None:
        """Remove the copy, because the stream was deleted or has moved to other nodes."""
        await self.close()
        await asyncio.to_thread(copies.remove_copy, self._node.data_dir, record)
        await self._node.mirror.change(
            self._name, lambda present: transitions.removed(present, self._me)
        )
