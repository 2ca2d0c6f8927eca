"""One replicated stream on this node: it has the role that its newest record says.

One task follows the record, one version at a time. A role ends when nothing that it began uses the
log any more. The next one continues with the same open log, and a host of its own. A log whose
state is in doubt is closed between the two, and opened again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial

from liftlog.cluster import side_state, transitions
from liftlog.cluster.election import LogEnd
from liftlog.cluster.epochs import last_epoch
from liftlog.cluster.leading import Change, Leader
from liftlog.cluster.record import Follow, Lead, Leave, Register, StreamRecord, role_of
from liftlog.errors import Conflict, LiftlogError, MetadataUnavailable
from liftlog.log import Log
from liftlog.server.cleaning.compaction import compaction_of
from liftlog.server.commits.host import StreamHost
from liftlog.server.node import copies
from liftlog.server.node.handing_over import LOOK_SECONDS
from liftlog.server.node.local_node import LocalNode
from liftlog.server.replication.fetching import FollowedStream, follow_log_start
from liftlog.server.replication.hearing import HUNG_SECONDS
from liftlog.server.replication.repair import check_same_leader, check_whole
from liftlog.server.replication.serving import ServedStream
from liftlog.server.streams.description import why_broken
from liftlog.server.streams.settings import origin_of, settings_of
from liftlog.settings import StreamSettings

logger = logging.getLogger("liftlog.server.replication")

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
_DRAIN_SECONDS = 10.0
_LEAVE_SECONDS = 5.0
_STALLED_SECONDS = 1.0
"""A task that has waited for the disk for so long does not see to what it has to stop."""


class Replica:
    """Belongs to the event loop. `run` follows the record until the stream has left this node."""

    def __init__(self, name: str, node: LocalNode) -> None:
        self.name = name
        self._node = node
        self._me = node.member.name
        self._log: Log | None = None
        """Open and without a role."""
        self.isr_changes = 0
        """Changes of the in-sync set while this node led."""
        self._remembered: tuple[object, ...] = ()
        """Leader, replicas and in-sync set, as they are on this node's disk."""
        self._remembers_since: float | None = None
        """When it began to be written what is next there."""
        self._settings: tuple[Mapping[str, object], StreamSettings] | None = None
        """Those of the record that was seen last, and what they mean."""
        self._resigned = ("", 0)
        """The incarnation of which this life has given up leading last, and in which epoch."""
        self._is_whole = False
        """Whether the log, as it was opened, can have all that this node confirmed."""
        self._wake = asyncio.Event()
        self.opened = asyncio.Event()
        """Set once the log of the newest stream of the name was opened, or could not be."""
        self._newest = self._looked_at = ""  # incarnations
        self._done_version = 0
        self._doing: list[tuple[int, asyncio.Future[None]]] = []
        self._is_leaving = False
        self._is_to_copy_again = False
        self._is_reading = False
        self._goes_over_to: StreamRecord | None = None

    def record_changed(self, record: StreamRecord) -> None:
        """There is a newer record, perhaps of another stream of the name."""
        if record.incarnation != self._newest:
            self._newest = record.incarnation
            self.opened.clear()
        if record.leader != self._me and self.waits_for_disk_seconds >= _STALLED_SECONDS:
            self._stop_taking_messages()
        self._wake.set()

    @property
    def waits_for_disk_seconds(self) -> float:
        """For how long the disk has not done what the role needs next; 0.0: it needs nothing."""
        host, since = self._node.hosts.hosts.get(self.name), self._remembers_since
        if since is None and (host is None or not host.turns.is_taken):
            return 0.0  # of a thousand streams, once a second
        seconds = 0.0 if host is None else host.turns.taken_seconds
        return seconds if since is None else max(seconds, time.monotonic() - since)

    def _stop_taking_messages(self) -> None:
        """Another node leads, and the disk here hangs: the role ends when it is back. Until then
        messages would be taken from those who share the subscription, and answered by no one."""
        host = self._node.hosts.hosts.get(self.name)
        if self.led is not None and host is not None:
            self.stop_leading("another node leads")
            self._node.spawn(self._detach(host))

    async def _detach(self, host: StreamHost) -> None:
        await self._node.hosts.attachments.detach(host)

    @property
    def led(self) -> ServedStream | None:
        return self._node.led.get(self.name)

    @property
    def followed(self) -> FollowedStream | None:
        return self._node.followed.get(self.name)

    def wake(self) -> None:
        """Something that the stream may have waited for has happened."""
        self._wake.set()

    def copy_again(self) -> None:
        """The copy here is to be dropped, and fetched from the leader, when another node leads and
        acks do not need this one."""
        self._is_to_copy_again = True
        self._wake.set()

    def give_up(self, stored: StreamRecord) -> None:
        """What this node knows of the stream is given up: go over to what has come from `stored`,
        with an empty copy."""
        self._goes_over_to = stored
        self._wake.set()

    def _note_opened(self) -> None:
        if self._looked_at == self._newest:
            self.opened.set()

    @property
    def log_end(self) -> LogEnd | None:
        """Where the copy ends; None when it cannot be served."""
        host, log = self._node.hosts.hosts.get(self.name), self._copy
        if log is None or (host is not None and host.failure):
            return None
        return LogEnd(last_epoch(log.epochs, log.log_end_offset), log.log_end_offset)

    @property
    def is_given_up(self) -> bool:
        """Whether the copy is to be dropped: it was written by metadata that were given up."""
        return self._copy is not None and self._copy.incomplete == copies.GIVEN_UP

    @property
    def _copy(self) -> Log | None:
        host = self._node.hosts.hosts.get(self.name)
        return self._log if host is None else host.log

    def stop_leading(self, reason: str) -> None:
        """Take no more messages in this epoch, whatever the record says."""
        host = self._node.hosts.hosts.get(self.name)
        if self.led is not None and host is not None:
            host.step_down(reason)

    async def does(self, version: int) -> None:
        """Return when this node does what that version of the record says, or a newer one."""
        if self._done_version < version:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._doing.append((version, done))
            await done

    def _note_done(self, record: StreamRecord) -> None:
        self._done_version = record.version
        doing, self._doing = self._doing, []
        for version, done in doing:
            if version > record.version:
                self._doing.append((version, done))
            elif not done.done():
                done.set_result(None)

    async def run(self) -> bool:
        """Follow the record. Returns True when the stream has left this node; False when the node
        leaves its streams, or after a defect, which `hosts.broken` tells."""
        pause, broken, told = _FIRST_PAUSE_SECONDS, self._node.hosts.broken, ""
        while not self._is_leaving:
            self._wake.clear()
            try:
                if await self._follow_record():
                    return True
                pause = _FIRST_PAUSE_SECONDS
                if told and broken.get(self.name) == told:
                    del broken[self.name]
            except LiftlogError as error:
                logger.error("role-not-taken stream=%s error=%s", self.name, error)  # noqa: TRY400
                self._note_opened()
                if not isinstance(error, MetadataUnavailable):
                    broken[self.name] = told = why_broken(error)
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
            if self.led is not None or self.followed is not None:
                self._note_opened()
            await self._wake.wait()
        return False

    async def _follow_record(self) -> bool:
        """One look at the record; True when the stream has left this node."""
        if self._goes_over_to is not None:
            await self._go_over(self._goes_over_to)
            return False
        record = self._node.mirror.records.get(self.name)
        if record is None:
            return False  # since the start, the store has had only what is not believed
        self._looked_at = record.incarnation
        host = self._node.hosts.hosts.get(self.name)
        if host is not None and host.log.incarnation != record.incarnation:
            await self._end_role()  # deleted and created again
        resigned = self._resigned_epoch(record.incarnation)
        role = role_of(record, self._me, self._node.member.start, resigned_epoch=resigned)
        await self._remember(record)
        if isinstance(role, Leave):
            await self._leave_node(record)
            return True
        if isinstance(role, Register):
            await self._register(record)
        elif isinstance(role, Lead):
            if self.led is not None and self.led.leader.epoch == role.epoch:
                self.isr_changes += set(record.isr) != set(self.led.leader.record.isr)
                self.led.adopt(record)
            elif self._may_lead_on(role.epoch):
                await self._lead_on(record)
            else:
                await self._lead(record)
        elif (
            isinstance(role, Follow)
            and self._is_to_copy_again
            and await self._may_drop_copy(record)
        ):
            await self._drop_copy(record)
            return False
        elif self.followed is not None:
            self.followed.assigned(record)
        else:
            await self._follow(record)
        self._note_done(record)
        await self._adopt_settings(record)
        return False

    async def _remember(self, record: StreamRecord) -> None:
        """Before this node acts on another leader, other replicas or another in-sync set: if the
        metadata store forgets them, this node does not, also after a start."""
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

    async def _adopt_settings(self, record: StreamRecord) -> None:
        """What an operator has changed in the record, here or through another node."""
        host = self._node.hosts.hosts.get(self.name)
        if host is None or host.failure:
            return
        newest = self._node.mirror.records.get(self.name, record)
        if newest.incarnation == record.incarnation:
            record = newest  # to go back to older subjects for a moment would lose messages
        wanted = self._settings_of(record)
        if wanted != host.settings:
            await host.exclusively(
                lambda: host.log.set_metadata(host.metadata(wanted)), lambda: host.adopt(wanted)
            )
            self._node.hosts.streams_changed()
        if self.led is not None and self._is_to_truncate(self.led):
            start = min(self.led.leader.record.log_start, host.log.high_watermark)
            now_ns = host.log.environment.age_clock_ns()
            await host.exclusively(lambda: follow_log_start(host.log, start, wanted, now_ns))

    def _settings_of(self, record: StreamRecord) -> StreamSettings:
        """The settings in the record, which most of its versions leave as they are. Raises
        InvalidArgument."""
        if self._settings is None or self._settings[0] != record.settings:
            self._settings = (record.settings, settings_of(record))
        return self._settings[1]

    # --- the log ---

    async def _register(self, record: StreamRecord) -> None:
        await self._end_role()
        log, is_whole = await self._open(record)
        member = self._node.member

        def step(present: StreamRecord) -> StreamRecord | None:
            had = is_whole and member.had(present.starts.get(self._me, 0))
            # No other node could have what a mark tells of, and an operator has repaired it.
            may_lack = log.incomplete and present.members != (self._me,)
            return transitions.register(present, self._me, member.start, clean=had and not may_lack)

        after = await self._node.mirror.change(self.name, step)
        if after is not None:
            await self._judge_mark(log, after)

    async def _judge_mark(self, log: Log, record: StreamRecord) -> None:
        """The record tells what a copy is worth that is marked as incomplete: it has registered as
        such. One that is given up is dropped. Raises Conflict while no other one is whole."""
        if log.incomplete != copies.GIVEN_UP or record.must_keep(self._me):
            if log.incomplete:
                await asyncio.to_thread(log.note_complete)
        elif record.isr or record.eligible:
            await self._remove_given_up(record)
        else:
            raise Conflict(f"the copy is kept, since no other one is whole: {copies.GIVEN_UP}")

    async def _open(self, record: StreamRecord) -> tuple[Log, bool]:
        """The log, opened or created; and whether it can have all that this node confirmed."""
        if self._log is not None and self._log.incarnation != record.incarnation:
            await self._close_log()
        if self._log is None:
            self._log, self._is_whole = await self._open_copy(record)
        await self._node.mirror.hold(record)
        return self._log, self._is_whole

    async def _open_copy(self, record: StreamRecord) -> tuple[Log, bool]:
        member, data_dir = self._node.member, self._node.data_dir
        has_held = self._node.mirror.has_held(record)
        is_of_this_start = record.starts.get(self._me) == member.start
        if has_held and is_of_this_start and record.must_keep(self._me):
            await asyncio.to_thread(copies.check_is_there, data_dir, record)
        log, is_new = await asyncio.to_thread(copies.open_copy, data_dir, record)
        if not is_new:
            return log, member.is_same
        # It has all if no copy was here before: one that was is lost.
        is_whole = is_of_this_start or (member.is_same and has_held is False)
        if not is_whole and record.must_keep(self._me):
            logger.warning("replica-lost stream=%s path=%s", self.name, log.directory)
        return log, is_whole

    async def _may_drop_copy(self, record: StreamRecord) -> bool:
        self._is_to_copy_again = False  # who wants it asks again
        try:
            transitions.discard(record, self._me)
            link = self._node.link_to(str(record.leader))
            await check_whole(link, record)
        except LiftlogError as error:
            logger.warning("copy-kept stream=%s reason=%s", self.name, error)
            return False
        return True

    async def _drop_copy(self, checked: StreamRecord) -> None:
        """Leave the in-sync set, remember that, and only then remove the copy; it begins again with
        nothing. After a stop in between the node has one of the two copies, and is not in sync.
        `checked` names the leader whose copy is whole: that of another one may not be."""

        def left(present: StreamRecord) -> StreamRecord | None:
            check_same_leader(present, checked)
            return transitions.discard(present, self._me)

        self._wake.set()  # then look at the record again, whatever comes of this
        await self._end_role()
        await self._close_log()
        try:
            after = await self._node.mirror.change(self.name, left)
        except Conflict as error:
            logger.warning("copy-kept stream=%s reason=%s", self.name, error)
            return
        await self._node.mirror.remembered()
        if after is not None and self._node.mirror.records[self.name] == after:
            logger.warning("copy-dropped stream=%s epoch=%d", self.name, after.leader_epoch)
            await asyncio.to_thread(copies.remove_copy, self._node.data_dir, after)

    async def _go_over(self, stored: StreamRecord) -> None:
        """The copy is dropped after the record tells that it counts for nothing, and this node
        remembers that. It is marked before: a start in between drops it as well."""
        self._goes_over_to = None
        self._wake.set()  # then look at the record again, whatever comes of this
        await self._end_role()
        log, _ = await self._open(self._node.mirror.known[self.name])
        before = log.incomplete
        await asyncio.to_thread(log.note_incomplete, copies.GIVEN_UP)
        after = None
        try:
            after = await self._node.mirror.go_over(self.name, self._me, stored)
        except Conflict as error:
            logger.warning("copy-kept stream=%s reason=%s", self.name, error)
        finally:  # the guard tries again: meanwhile the copy counts for what is known here
            if after is None:
                await asyncio.to_thread(log.note_incomplete, before)
        if after is not None:
            await self._remove_given_up(after)

    async def _remove_given_up(self, record: StreamRecord) -> None:
        """What was appended in epochs that the stream has had otherwise could pass for that."""
        await self._node.mirror.remembered()
        await self._close_log()
        await asyncio.to_thread(copies.remove_copy, self._node.data_dir, record)
        logger.warning(
            "copy-given-up stream=%s version=%d epoch=%d",
            self.name,
            record.version,
            record.leader_epoch,
        )

    # --- roles ---

    async def _lead(self, record: StreamRecord) -> None:
        log = await self._log_between_roles(record)
        epoch = record.leader_epoch
        before = max([begun for begun, _ in log.epochs], default=0)

        def begin() -> None:
            if log.log_end_offset < record.log_start:
                # The copies that had more are lost. What is published from now on must not get
                # offsets that an administrator has deleted.
                log.truncate_prefix(record.log_start)
            log.begin_epoch(epoch)

        await self._change_log(begin)
        leader = self._leader_of(record, log)
        led = ServedStream(
            leader,
            log,
            pace=self._node.pace,
            ended=partial(self._ended, record.incarnation, epoch),
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
        self._log = None
        self._node.led[self.name] = led
        self._node.stirred.add(self.name)
        self._lose_silent(led, record)
        host.commit_up_to(leader.local(log.durable_end_offset))
        has_all = await self._node.hosts.attach_replica(host)
        self._node.handovers.leads(self.name)
        # Who was elected so may have ended before it led.
        if record.unclean_epoch == epoch or (
            before < record.unclean_epoch and record.isr == (self._me,)
        ):
            self._node.hosts.note_possible_loss(
                host, f"complete copies were given up: in epoch {epoch} what acks promised may lack"
            )
        elif epoch > 1 and not has_all:
            self._node.hosts.note_possible_loss(
                host, f"the stream had no leader before this node took over in epoch {epoch}"
            )
        logger.info("leading stream=%s epoch=%d", self.name, epoch)

    def _leader_of(self, record: StreamRecord, log: Log) -> Leader:
        """In the epoch of the record, which has begun in the log."""
        epoch = record.leader_epoch
        # Every change until the next role is of this epoch.
        log.leases.number(partial(side_state.begin, epoch), partial(side_state.following, epoch))
        return Leader(
            record,
            self._me,
            log.epochs,
            log_end=log.log_end_offset,
            durable_end=log.durable_end_offset,
            high_watermark=log.high_watermark,
            now=asyncio.get_running_loop().time(),
            lag_max=self._node.lag_max_seconds,
            side_version=log.leases.side_state.version,
            stirred=partial(self._node.stirred.add, self.name),
        )

    def _lose_silent(self, led: ServedStream, record: StreamRecord) -> None:
        for other in record.members:
            if self._node.hearing.silent_seconds(other) >= HUNG_SECONDS:
                led.lost(other)

    def _may_lead_on(self, epoch: int) -> bool:
        """Whether this node leads in the epoch before, between which and this one there is no
        other, and goes on to take messages. A handover under way is of that epoch alone."""
        host = self._node.hosts.hosts.get(self.name)
        return (
            self.led is not None
            and host is not None
            and host.is_accepting
            and not self.led.leader.resigned
            and self.led.leader.epoch + 1 == epoch
            and not self._node.handovers.is_giving(self.name)
        )

    async def _lead_on(self, record: StreamRecord) -> None:
        """Replicas have come or gone, and the leader stays: publishers must not notice. The log,
        the subscription and all that waits for followers stay as they are."""
        led, host = self.led, self._node.hosts.hosts[self.name]
        assert led is not None
        log, epoch = host.log, record.leader_epoch

        def begin() -> None:
            if led.leader.resigned:
                return
            leader = self._leader_of(record, log)
            led.lead_on(leader, partial(self._ended, record.incarnation, epoch))
            self._node.stirred.add(self.name)
            self._lose_silent(led, record)
            host.adopt(host.settings)  # batches bear the epoch
            host.commit_up_to(leader.local(log.durable_end_offset))

        try:
            await host.exclusively(lambda: log.begin_epoch(epoch), begin)
        except LiftlogError:
            self.stop()  # the next look ends the role, and begins another one
            raise
        if led.leader.epoch != epoch:  # it stepped down meanwhile
            await self._lead(record)
            return
        logger.info("leading stream=%s epoch=%d", self.name, epoch)

    def _ended(self, incarnation: str, epoch: int, reason: str) -> None:
        """This node no longer leads in this epoch, and will not again, whatever the record says.
        A stream that is created again has epochs of its own."""
        self._resigned = (incarnation, max(self._resigned_epoch(incarnation), epoch))
        record = self._node.mirror.records[self.name]
        present = (record.incarnation, record.leader, record.leader_epoch)
        if present == (incarnation, self._me, epoch):
            logger.warning("resigning stream=%s epoch=%d reason=%s", self.name, epoch, reason)
            self._node.spawn(self._resign(incarnation, epoch))
        self.wake()

    def _resigned_epoch(self, incarnation: str) -> int:
        resigned, epoch = self._resigned
        return epoch if resigned == incarnation else 0

    async def _resign(self, incarnation: str, epoch: int) -> None:
        """Tell the others, who may lead in another epoch; until the record says that one does."""

        def step(present: StreamRecord) -> StreamRecord | None:
            if (present.incarnation, present.leader_epoch) != (incarnation, epoch):
                return None
            return transitions.resign(present, self._me)

        with contextlib.suppress(Conflict):  # deleted
            await self._change_until_known(step)

    async def _follow(self, record: StreamRecord) -> None:
        log = await self._log_between_roles(record)
        await self._change_log(partial(_end_lead, log))
        host = await self._node.hosts.host_replica(
            self.name, self._settings_of(record), log, origin=origin_of(record), led=None
        )
        self._log = None
        followed = self._node.followed[self.name] = FollowedStream(
            host,
            record,
            self._me,
            link_to=self._node.link_to,
            learn=self._node.mirror.told,
            tell_record_is_old=self.look_again,
            log_changed=partial(self._node.ids.changed, self.name),
            room=self._node.room,
        )
        followed.start()
        logger.info(
            "following stream=%s leader=%s epoch=%d",
            self.name,
            record.leader or "none",
            record.leader_epoch,
        )

    def look_again(self) -> None:
        """Called with all that shows a newer record: one read is under way at a time."""
        if not self._is_reading:
            self._is_reading = True
            self._node.spawn(self._read_record())

    async def _read_record(self) -> None:
        """Nothing else has it read: it is tried until the store answers."""
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

    async def _log_between_roles(self, record: StreamRecord) -> Log:
        """The log, which no role uses. Until the next one has begun it can be read here."""
        host = self._node.hosts.hosts.get(self.name)
        if host is not None:
            self.stop()
            if host.is_leading:
                host.step_down("the lead has ended")
            if await self._node.hosts.rest_replica(host, seconds=_DRAIN_SECONDS):
                return host.log
            await self._end_role()
        log, _ = await self._open(record)
        if log.incomplete:  # what was to follow the change of the record has failed
            await self._judge_mark(log, record)
            log, _ = await self._open(record)
        return log

    async def _change_log(self, change: Callable[[], object]) -> None:
        """Change the log between two roles, in a thread."""
        host = self._node.hosts.hosts.get(self.name)
        if host is None:
            await asyncio.to_thread(change)
        else:
            await host.exclusively(change)

    async def _end_role(self) -> None:
        """End the role, and close its log."""
        self.stop()
        host = self._node.hosts.hosts.get(self.name)
        if host is not None:
            if host.is_leading:
                host.step_down("the lead has ended")
            await self._node.hosts.end_replica(host, seconds=_DRAIN_SECONDS)
        self._node.hosts.broken.pop(self.name, None)

    async def _close_log(self) -> None:
        """That of no role, if there is one."""
        if self._log is not None:
            log, self._log = self._log, None
            await asyncio.to_thread(log.close)

    def stop(self) -> None:
        led = self._node.led.pop(self.name, None)
        if led is not None:
            led.close()
        followed = self._node.followed.pop(self.name, None)
        if followed is not None:
            followed.close()

    async def _leave_node(self, record: StreamRecord) -> None:
        """The stream was deleted, or its copy has moved to another node."""
        await self._end_role()
        await self._close_log()
        await asyncio.to_thread(copies.remove_copy, self._node.data_dir, record)
        await self._node.mirror.change(
            self.name, lambda present: transitions.removed(present, self._me)
        )

    # --- the in-sync set ---

    def change_due(self) -> Change | None:
        """A change of the in-sync set that is due."""
        led = self.led
        if led is None:
            return None
        try:
            led.side_changed()  # leases also end without a request
            if self._is_to_truncate(led):
                self.wake()
            return led.propose(self._node.mirror.directory.stopping)
        except LiftlogError as error:  # one stream must not end the task of all
            self._node.warnings.warn("in-sync-set-not-judged stream=%s error=%s", self.name, error)
            return None

    def _is_to_truncate(self, led: ServedStream) -> bool:
        """Whether records are committed here that an administrator has deleted: a new leader may
        have known too little of that when it looked at the record."""
        host = self._node.hosts.hosts.get(self.name)
        if host is None or host.failure:
            return False
        start = min(led.leader.record.log_start, host.log.high_watermark)
        return start > host.log.log_start_offset

    async def commit(self, change: Change) -> None:
        """Try to make this change of the in-sync set."""
        try:
            await self._node.mirror.commit(change)
        except LiftlogError as error:  # as above
            self._node.warnings.warn("in-sync-set-unchanged stream=%s error=%s", self.name, error)

    async def let_tombstones_go(self, forget_after_seconds: float) -> None:
        """Let compaction remove the tombstones that every replica has, here and on the others."""
        led, host = self.led, self._node.hosts.hosts.get(self.name)
        if led is None or host is None or compaction_of(host.settings) is None:
            return
        leases, bound = host.log.leases, led.tombstone_bound(forget_after_seconds)
        if bound != leases.tombstone_bound:
            try:
                await host.exclusively(lambda: leases.set_tombstone_bound(bound))
                led.side_changed()
            except LiftlogError as error:  # one stream must not end the task of all
                logger.warning("tombstones-kept stream=%s error=%s", self.name, error)

    async def leave(self) -> None:
        """Before a planned stop: leave the in-sync set, and the lead with it. On return the leader
        does not wait for this node any more, unless it could not be told. Does not raise."""
        known = self._node.mirror.records.get(self.name)
        if known is not None and not known.deleted:
            # A stream that was handed over is followed first, or its acks would wait for this node.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self.does(known.version)
        self._is_leaving = True

        def step(present: StreamRecord) -> StreamRecord | None:
            if len(present.members) > 1 and not present.deleted:
                return transitions.fence(present, {self._me})
            return None

        try:
            async with asyncio.timeout(_LEAVE_SECONDS):
                record = await self._change_until_known(step)
        except (TimeoutError, Conflict) as error:
            reason = str(error) or "the metadata store does not answer"
            logger.warning("in-sync-set-not-left stream=%s error=%s", self.name, reason)
            return
        if self.followed is not None:
            self.followed.close()  # one that asks is taken in again
        # Acks wait for this node until the leader has seen that.
        if record is not None and record.leader not in (None, self._me):
            await self._node.handovers.have_look(str(record.leader), record)

    async def _change_until_known(
        self, step: Callable[[StreamRecord], StreamRecord | None]
    ) -> StreamRecord | None:
        """As `Mirror.change`, again and again while the store does not answer."""
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                return await self._node.mirror.change(self.name, step)
            except MetadataUnavailable as error:
                logger.warning("record-unchanged stream=%s error=%s", self.name, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _end_lead(log: Log) -> None:
    """What a follower has, it has promised: all of it is durable. Blocking."""
    log.note_acked(log.sync())
    log.leases.follow()
