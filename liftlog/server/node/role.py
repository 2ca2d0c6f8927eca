"""The role of one replicated stream on this node: leader or follower.

A role has ended when none of its operations uses the log any more. The next role uses the same open
log, and a new host. If the state of the log is uncertain, the log is closed and opened again
between the two roles.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial

from liftlog.cluster import side_state, transitions
from liftlog.cluster.leading import Leader
from liftlog.cluster.record import Change, StreamMetadata
from liftlog.errors import Conflict, LiftlogError, MetadataUnavailable
from liftlog.log import Log
from liftlog.server.cleaning.compaction import compaction_of
from liftlog.server.node.copy_on_disk import CopyOnDisk
from liftlog.server.node.local_node import LocalNode
from liftlog.server.replication.fetching import FollowedStream
from liftlog.server.replication.fetching_consumers import FollowedConsumers
from liftlog.server.replication.hearing import HUNG_SECONDS
from liftlog.server.replication.log_start import follow_log_start
from liftlog.server.replication.serving import ServedStream
from liftlog.server.streams.settings import origin_of, settings_of
from liftlog.settings import StreamSettings

logger = logging.getLogger("liftlog.server.replication")

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
_DRAIN_SECONDS = 10.0


class Role:
    """The role of one replica. Belongs to the event loop. `wake` makes the replica check the record
    again."""

    def __init__(
        self, name: str, node: LocalNode, copy: CopyOnDisk, wake: Callable[[], None]
    ) -> None:
        self.name = name
        self._node = node
        self._me = node.member.name
        self._copy = copy
        self._wake = wake
        self.isr_changes = 0
        """Number of changes of the in-sync set while this node led."""
        self._settings: tuple[Mapping[str, object], StreamSettings] | None = None
        """The settings of the last record, raw and parsed."""
        self._resigned = ("", 0)
        """Incarnation and epoch of the last leadership that this process resigned."""
        self._is_reading = False

    @property
    def led(self) -> ServedStream | None:
        return self._node.led.get(self.name)

    @property
    def followed(self) -> FollowedStream | None:
        return self._node.followed.get(self.name)

    # --- leading ---

    async def lead(self, record: StreamMetadata, epoch: int) -> None:
        """Lead in the epoch of the record, or continue to lead. Raises LiftlogError."""
        if self.led is not None and self.led.leader.epoch == epoch:
            self.isr_changes += set(record.isr) != set(self.led.leader.record.isr)
            self.led.adopt(record)
        elif self._may_lead_on(epoch):
            await self._lead_on(record)
        else:
            await self._begin_to_lead(record)

    async def _begin_to_lead(self, record: StreamMetadata) -> None:
        log = await self._log_between_roles(record)
        epoch = record.leader_epoch
        before = max([begun for begun, _ in log.view.manifest.epochs], default=0)

        def begin() -> None:
            if log.log_end_offset < record.log_start:
                # The copies with more records are lost. New messages must not get offsets below a
                # log start that an administrator has set.
                log.truncate_prefix(record.log_start)
            log.writer.begin_epoch(epoch)

        await self._change_log(begin)
        journal = self._node.hosts.journal
        leader = self._leader_of(record, log, journal.consumers_of(log.incarnation))
        led = ServedStream(
            leader,
            log,
            pace=self._node.pace,
            ended=partial(self._ended, record.incarnation, epoch),
            holder=journal,
            expects_repair=partial(self._node.hosts.expects_repair, self.name),
        )
        settings, origin = self._settings_of(record), origin_of(record)
        host = await self._node.hosts.host_replica(
            self.name,
            settings,
            log,
            origin=origin,
            led=led,
            ids=await self._node.ids.take(self.name, log),
        )
        self._copy.hand_out()
        self._node.led[self.name] = led
        self._node.hosts.leads(self.name, led.consumers)
        self._node.stirred.add(self.name)
        self._lose_silent(led, record)
        host.commit_up_to(leader.local(log.durable_end_offset))
        has_all = await self._node.hosts.attach_replica(host)
        self._node.handovers.leads(self.name)
        # A node that was elected uncleanly may have stopped before it began to lead.
        if record.unclean_epoch == epoch or (
            before < record.unclean_epoch and record.isr == (self._me,)
        ):
            self._node.hosts.note_possible_loss(
                host,
                f"complete copies were given up: in epoch {epoch} acked messages may be missing",
            )
        elif epoch > 1 and not has_all:
            self._node.hosts.note_possible_loss(
                host, f"the stream had no leader before this node took over in epoch {epoch}"
            )
        logger.info("leading stream=%s epoch=%d", self.name, epoch)

    def _leader_of(self, record: StreamMetadata, log: Log, consumers: Collection[str]) -> Leader:
        """Create the leader for the epoch of the record. The log has begun this epoch."""
        epoch = record.leader_epoch
        # Each change of the side state belongs to this epoch until the next role begins.
        log.leases.number(partial(side_state.begin, epoch), partial(side_state.following, epoch))
        return Leader(
            record,
            self._me,
            log.view.manifest.epochs,
            log_end=log.log_end_offset,
            durable_end=log.durable_end_offset,
            high_watermark=log.high_watermark,
            now=asyncio.get_running_loop().time(),
            lag_max=self._node.lag_max_seconds,
            side_version=log.leases.side_state.version,
            consumers=consumers,
            stirred=partial(self._node.stirred.add, self.name),
        )

    def _lose_silent(self, led: ServedStream, record: StreamMetadata) -> None:
        for other in record.members:
            if self._node.hearing.silent_seconds(other) >= HUNG_SECONDS:
                led.lost(other)

    def _may_lead_on(self, epoch: int) -> bool:
        """Return True if this node leads in the epoch directly before the record's epoch, and still
        accepts messages. Return False during a handover, because a handover belongs to one
        epoch."""
        host = self._node.hosts.hosts.get(self.name)
        return (
            self.led is not None
            and host is not None
            and host.is_accepting
            and not self.led.leader.resigned
            and self.led.leader.epoch + 1 == epoch
            and not self._node.handovers.is_giving(self.name)
        )

    async def _lead_on(self, record: StreamMetadata) -> None:
        """Continue as leader after replicas were added or removed. Publishers are not interrupted:
        the log, the subscription, and the messages that wait for followers stay."""
        led, host = self.led, self._node.hosts.hosts[self.name]
        assert led is not None
        log, epoch = host.log, record.leader_epoch

        def begin() -> None:
            if led.leader.resigned:
                return
            leader = self._leader_of(record, log, led.leader.states.names)
            led.lead_on(leader, partial(self._ended, record.incarnation, epoch))
            self._node.stirred.add(self.name)
            self._lose_silent(led, record)
            host.adopt(host.settings)  # needed because batches contain the epoch
            host.commit_up_to(leader.local(log.durable_end_offset))

        try:
            await host.exclusively(lambda: log.writer.begin_epoch(epoch), begin)
        except LiftlogError:
            self.stop()  # the replica then ends this role, and begins a new one
            raise
        if led.leader.epoch != epoch:  # it stepped down in the meantime
            await self._begin_to_lead(record)
            return
        logger.info("leading stream=%s epoch=%d", self.name, epoch)

    def _ended(self, incarnation: str, epoch: int, reason: str) -> None:
        """Note that this node has stopped leading in this epoch. It will not lead in this epoch
        again, even if the stream's metadata still names it. If a stream is created again, its
        epochs are independent of the earlier epochs."""
        self._resigned = (incarnation, max(self.resigned_epoch(incarnation), epoch))
        record = self._node.mirror.records[self.name]
        present = (record.incarnation, record.leader, record.leader_epoch)
        if present == (incarnation, self._me, epoch):
            logger.warning("resigning stream=%s epoch=%d reason=%s", self.name, epoch, reason)
            self._node.spawn(self._resign(incarnation, epoch))
        self._wake()

    def resigned_epoch(self, incarnation: str) -> int:
        """Return the last epoch in which this process resigned from leading the stream; 0 if it has
        not resigned."""
        resigned, epoch = self._resigned
        return epoch if resigned == incarnation else 0

    async def _resign(self, incarnation: str, epoch: int) -> None:
        """Resign in the stream's metadata, so that another replica may lead in another epoch.
        Retries until the store answers."""

        def step(present: StreamMetadata) -> StreamMetadata | None:
            if (present.incarnation, present.leader_epoch) != (incarnation, epoch):
                return None
            return transitions.resign(present, self._me)

        with contextlib.suppress(Conflict):  # the stream was deleted
            await self.change_until_known(step)

    def stop_leading(self, reason: str) -> None:
        """Accept no more messages in this epoch, even if the stream's metadata still names this
        node as the leader."""
        host = self._node.hosts.hosts.get(self.name)
        if self.led is not None and host is not None:
            host.step_down(reason)

    # --- following ---

    async def follow(self, record: StreamMetadata) -> None:
        """Follow the leader of the record, or continue to follow. Raises LiftlogError."""
        if self.followed is not None:
            self.followed.assigned(record)
        else:
            await self._begin_to_follow(record)

    async def _begin_to_follow(self, record: StreamMetadata) -> None:
        log = await self._log_between_roles(record)
        await self._change_log(partial(_end_lead, log))
        host = await self._node.hosts.host_replica(
            self.name, self._settings_of(record), log, origin=origin_of(record), led=None
        )
        self._copy.hand_out()
        followed = self._node.followed[self.name] = FollowedStream(
            host,
            record,
            self._me,
            link_to=self._node.link_to,
            learn=self._node.mirror.told,
            tell_record_is_old=self.look_again,
            log_changed=partial(self._node.ids.changed, self.name),
            room=self._node.room,
            consumers=FollowedConsumers(
                self.name, log.incarnation, self._node.hosts.journal, link_to=self._node.link_to
            ),
        )
        followed.start()
        logger.info(
            "following stream=%s leader=%s epoch=%d",
            self.name,
            record.leader or "none",
            record.leader_epoch,
        )

    def look_again(self) -> None:
        """Read the record, because there may be a newer version. Only one read runs at a time."""
        if not self._is_reading:
            self._is_reading = True
            self._node.spawn(self._read_record())

    async def _read_record(self) -> None:
        """Read the record. The read is retried until the store answers, because nothing else
        triggers it."""
        pause = _FIRST_PAUSE_SECONDS
        try:
            while self.followed is not None or self.led is not None:
                try:
                    await self._node.mirror.change(self.name, lambda present: None)
                    return
                except MetadataUnavailable:
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        finally:
            self._is_reading = False

    # --- from one role to the next ---

    async def _log_between_roles(self, record: StreamMetadata) -> Log:
        """End the current role and return the log. Until the next role has begun, no role uses the
        log, but readers can still read it on this node."""
        host = self._node.hosts.hosts.get(self.name)
        if host is not None:
            self.stop()
            if host.is_leading:
                host.step_down("the lead has ended")
            if await self._node.hosts.rest_replica(host, seconds=_DRAIN_SECONDS):
                return host.log
            await self.end()
        return await self._copy.open_for_role(record)

    async def _change_log(self, change: Callable[[], object]) -> None:
        """Change the log between two roles. The change runs in a thread."""
        host = self._node.hosts.hosts.get(self.name)
        if host is None:
            await asyncio.to_thread(change)
        else:
            await host.exclusively(change)

    async def end(self) -> None:
        """End the role, and close its log."""
        self.stop()
        host = self._node.hosts.hosts.get(self.name)
        if host is not None:
            if host.is_leading:
                host.step_down("the lead has ended")
            await self._node.hosts.end_replica(host, seconds=_DRAIN_SECONDS)
        self._node.hosts.broken.pop(self.name, None)

    def stop(self) -> None:
        """Stop serving followers and stop fetching; the host stays."""
        led = self._node.led.pop(self.name, None)
        if led is not None:
            led.close()
            self._node.hosts.consumers.pop(self.name, None)
        followed = self._node.followed.pop(self.name, None)
        if followed is not None:
            followed.close()

    # --- settings ---

    async def adopt_settings(self, record: StreamMetadata) -> None:
        """Adopt settings that an operator has changed in the stream's metadata, through this node
        or another node. Also truncate the log if an administrator has set its log start."""
        host = self._node.hosts.hosts.get(self.name)
        if host is None or host.failure:
            return
        newest = self._node.mirror.records.get(self.name, record)
        if newest.incarnation == record.incarnation:
            record = newest  # using the older subjects, even for a moment, would lose messages
        wanted = self._settings_of(record)
        if wanted != host.settings:
            await host.exclusively(
                lambda: host.log.structure.set_metadata(host.metadata(wanted)),
                lambda: host.adopt(wanted),
            )
            self._node.hosts.streams_changed()
        if self.led is not None and self._is_to_truncate(self.led):
            start = min(self.led.leader.record.log_start, host.log.high_watermark)
            now_ns = host.log.environment.age_clock_ns()
            await host.exclusively(lambda: follow_log_start(host.log, start, wanted, now_ns))

    def _settings_of(self, record: StreamMetadata) -> StreamSettings:
        """Return the parsed settings of the record. The settings are cached, because most versions
        of the record have the same settings. Raises InvalidArgument."""
        if self._settings is None or self._settings[0] != record.settings:
            self._settings = (record.settings, settings_of(record))
        return self._settings[1]

    # --- the in-sync set ---

    def change_due(self) -> Change | None:
        """Return a change of the in-sync set that is due; None if none is due."""
        led = self.led
        if led is None:
            return None
        try:
            led.side_changed()  # leases also end by themselves, without a request
            if self._is_to_truncate(led):
                self._wake()
            return led.propose(self._node.mirror.directory.stopping)
        except LiftlogError as error:  # an error of one stream must not end the task of all
            self._node.warnings.warn("in-sync-set-not-judged stream=%s error=%s", self.name, error)
            return None

    def _is_to_truncate(self, led: ServedStream) -> bool:
        """Return True if this node has committed records below the log start that an administrator
        has set. Such records exist if a new leader read the record when its log was still too short
        for the truncation."""
        host = self._node.hosts.hosts.get(self.name)
        if host is None or host.failure:
            return False
        start = min(led.leader.record.log_start, host.log.high_watermark)
        return start > host.log.log_start_offset

    async def commit(self, change: Change) -> None:
        """Try to commit this change of the in-sync set."""
        try:
            await self._node.mirror.commit(change)
        except LiftlogError as error:  # an error of one stream must not end the task of all
            self._node.warnings.warn("in-sync-set-unchanged stream=%s error=%s", self.name, error)

    async def let_tombstones_go(self, forget_after_seconds: float) -> None:
        """Allow compaction, on all nodes, to remove the tombstones that every replica has
        received."""
        led, host = self.led, self._node.hosts.hosts.get(self.name)
        if led is None or host is None or compaction_of(host.settings) is None:
            return
        leases, bound = host.log.leases, led.tombstone_bound(forget_after_seconds)
        if bound != leases.tombstone_bound:
            try:
                await host.exclusively(lambda: leases.set_tombstone_bound(bound))
                led.side_changed()
            except LiftlogError as error:  # an error of one stream must not end the task of all
                logger.warning("tombstones-kept stream=%s error=%s", self.name, error)

    async def change_until_known(
        self, step: Callable[[StreamMetadata], StreamMetadata | None]
    ) -> StreamMetadata | None:
        """Change the stream's metadata like `Mirror.change`, and retry while the store does not
        answer."""
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                return await self._node.mirror.change(self.name, step)
            except MetadataUnavailable as error:
                logger.warning("record-unchanged stream=%s error=%s", self.name, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _end_lead(log: Log) -> None:
    """End the leadership in the log. As a follower, this node has then confirmed all records of the
    log, so all of them must be durable. Blocking."""
    log.writer.note_acked(log.sync())
    log.leases.follow()
