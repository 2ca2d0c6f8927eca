"""One stream that this node follows: fetches from its leader, and applies the answers to the log.

`liftlog.cluster.following` makes the decisions, and this module carries them out on the log and the
connection. A request and a change of the log are never in progress at the same time. A request
confirms durable records, so it is sent only after the previous change is on disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from liftlog.cluster.following import (
    Answer,
    Append,
    Effect,
    Fail,
    Fetch,
    Follower,
    Gap,
    Resync,
    Truncate,
)
from liftlog.cluster.record import StreamMetadata
from liftlog.errors import (
    CorruptBatch,
    CorruptMetadata,
    DiskFull,
    FencedEpoch,
    LiftlogError,
    NotLeader,
    StaleIncarnation,
    SyncFailed,
    UnknownEpoch,
    UnsupportedFormat,
)
from liftlog.log.files.leases import SideState
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.replication import Replica, Replicate
from liftlog.records.header import parse_header
from liftlog.server.commits.host import StreamHost
from liftlog.server.replication.fetching_consumers import FollowedConsumers
from liftlog.server.replication.log_start import follow_log_start
from liftlog.server.replication.peer_link import PeerLink

logger = logging.getLogger("liftlog.server.replication")

_MAX_BYTES = 4 * 1024 * 1024
_LEAST_BYTES = 128 * 1024
_ALL_BYTES = 256 * 1024 * 1024
_INLINE_BYTES = 512 * 1024
"""Maximum size, in bytes, of an append inside the event loop while syncs are fast. Under load,
copying and checking this number of bytes takes less time than two handovers between threads."""
_MAX_REASON_CHARS = 500
_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 1.0


class FetchRoom:
    """Limits the number of bytes that the streams of a node request at the same time. Received
    records wait in memory for the disk, which may be slower than the network.

    Each request may be for `_LEAST_BYTES`, so that no stream waits for another stream. Bytes above
    that number count from the request until the records are stored. The sum of these bytes never
    exceeds `max_bytes`. Streams that lag behind share all of `max_bytes`. All other streams share
    half of `max_bytes`, and keep their share while they wait for new records. Belongs to the event
    loop.
    """

    def __init__(self, max_bytes: int = _ALL_BYTES) -> None:
        self._max_bytes = max_bytes
        self._streams: set[FollowedStream] = set()
        self._behind: set[FollowedStream] = set()
        self._taken = 0

    def note(self, stream: FollowedStream, *, is_behind: bool) -> None:
        """Note whether the leader had more records in its last answer."""
        self._streams.add(stream)
        (self._behind.add if is_behind else self._behind.discard)(stream)

    def forget(self, stream: FollowedStream) -> None:
        """Note that the stream sends no more requests."""
        self._streams.discard(stream)
        self._behind.discard(stream)

    def take(self, stream: FollowedStream) -> int:
        """Return the number of bytes to request, and reserve them until `give_back`."""
        if stream in self._behind:
            share = self._max_bytes // len(self._behind)
        else:
            share = self._max_bytes // 2 // max(1, len(self._streams))
        left = self._max_bytes - self._taken
        size = max(_LEAST_BYTES, min(_MAX_BYTES, share, _LEAST_BYTES + left))
        self.hold(size)
        return size

    def hold(self, size: int) -> None:
        """Count received bytes. They may be more than requested, because a batch arrives as a
        whole."""
        self._taken += max(0, size - _LEAST_BYTES)

    def give_back(self, size: int) -> None:
        """Release bytes that `take` has reserved or `hold` has counted."""
        self._taken -= max(0, size - _LEAST_BYTES)


class FollowedStream:
    """One stream that this node follows. Belongs to the event loop.

    `link_to` returns the connection to a node. `learn` is called with newer metadata from an
    answer. `tell_record_is_old` is called if an answer only shows that newer metadata exist.
    `log_changed` is called at the beginning, and after each change of the log. All streams of a
    node share `room`. `consumers` fetches the states of consumers with acks.
    """

    def __init__(
        self,
        host: StreamHost,
        record: StreamMetadata,
        node: str,
        *,
        link_to: Callable[[str], PeerLink],
        learn: Callable[[StreamMetadata], None],
        tell_record_is_old: Callable[[], None],
        room: FetchRoom,
        consumers: FollowedConsumers | None = None,
        log_changed: Callable[[], None] = lambda: None,
    ) -> None:
        log = host.log
        self.host = host
        self.follower = Follower(
            record,
            node,
            log.view.manifest.epochs,
            log_end=log.log_end_offset,
            high_watermark=log.high_watermark,
            side_version=log.leases.side_state.version,
            tombstones_removed_below=log.view.manifest.tombstones_removed_below,
        )
        self.leader_end = 0
        """The end of the leader's log in its last answer."""
        self._link_to = link_to
        self._learn = learn
        self._tell_record_is_old = tell_record_is_old
        self._log_changed = log_changed
        self._room = room
        self._consumers = consumers
        self._loop = asyncio.get_running_loop()
        self._exchange: Exchange | None = None
        self._body: memoryview | None = None
        self._held = 0  # counted bytes of the answer that is being stored
        self._told: Replica | None = None  # the newest answer
        self._pause = _FIRST_PAUSE_SECONDS
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._is_deleting = False
        self.is_full = False
        """True if the last answer could not be stored, because the disk is full."""

    @property
    def lag(self) -> int:
        """Number of records that this log lacks, according to the leader's last answer."""
        return max(0, self.leader_end - self.host.log.log_end_offset)

    # --- events ---

    def start(self) -> None:
        """Send a request to the leader, if there is one."""
        self._log_changed()
        self._room.note(self, is_behind=True)  # until the leader reports otherwise
        if self._consumers is not None:
            self._consumers.assigned(self.follower.record)
        self._do(self.follower.resumed())

    def assigned(self, record: StreamMetadata) -> None:
        """Adopt newer metadata of the stream."""
        before = self._exchange
        if record.leader_epoch > self.follower.record.leader_epoch:
            # The leader may not be ready yet, and acks wait. So this node retries sooner than after
            # the loss of a leader.
            self._pause = _FIRST_PAUSE_SECONDS
        effect = self.follower.assigned(record)
        if self._consumers is not None:
            self._consumers.assigned(self.follower.record)
        if self.follower.outstanding is None or effect is not None:
            self._give_up(before)
        self._do(effect)

    def connected(self, node: str) -> None:
        """Note that `node` is connected again."""
        if node == self.follower.record.leader:
            self._resume()
        if self._consumers is not None:
            self._consumers.connected(node)

    def close(self) -> None:
        """Send no more requests. A change of the log in progress is completed."""
        self._closed = True
        if self._consumers is not None:
            self._consumers.close()
        self._room.forget(self)
        self._give_up(self._exchange)
        self._cancel_timer()

    # --- requests ---

    def _do(self, effect: Effect | None) -> None:
        if self._closed:
            self._free()
        if effect is None or self._closed:
            return
        if isinstance(effect, Fetch):
            self._ask(effect)
        elif isinstance(effect, Append):
            self._store()
        elif isinstance(effect, Truncate):
            logger.warning("replica-truncated stream=%s log_end=%d", self.host.name, effect.end)
            self._change(partial(self._truncate, effect))
        elif isinstance(effect, Gap):
            self._change(partial(self._skip, effect))
        elif isinstance(effect, Resync):
            logger.warning("replica-resynced stream=%s offset=%d", self.host.name, effect.offset)
            self._change(partial(self._start_over, effect))
        elif isinstance(effect, Fail):
            self._fail(effect.reason)

    def _fail(self, reason: str) -> None:
        self._free()
        self._room.forget(self)
        self.host.fail(reason)

    def _free(self) -> None:
        """Release the last answer, because its records are stored or not needed."""
        self._body = None
        held, self._held = self._held, 0
        self._room.give_back(held)

    def _ask(self, fetch: Fetch) -> None:
        self._cancel_timer()
        self._free()
        size = self._room.take(self)
        message = Replicate(
            self.host.name,
            self.host.log.incarnation,
            fetch.epoch,
            fetch.offset,
            fetch.last_epoch,
            size,
            fetch.side_version,
            corrupt=fetch.damaged,
            record=[*fetch.mark],
            leader_record=[*fetch.leader_mark],
            full=self.is_full,
            old_consumers=self._consumers is not None and self._consumers.has_old_states,
        )
        self._exchange = Exchange(on_done=partial(self._answered, size))
        self._link_to(fetch.leader).request(message, self._exchange)

    def _give_up(self, exchange: Exchange | None) -> None:
        if exchange is not None and exchange is self._exchange:
            self._exchange = None

    def _answered(self, asked_bytes: int, exchange: Exchange) -> None:
        self._room.give_back(asked_bytes)
        if exchange is not self._exchange or self._closed:
            return  # this answers an abandoned request
        self._exchange = None
        if exchange.error is not None:
            self._refused(exchange.error)
            return
        answer = exchange.answer
        if not isinstance(answer, Replica):
            self._refused(StaleIncarnation("the leader answered something else"))
            return
        self._pause = _FIRST_PAUSE_SECONDS
        self.leader_end = answer.log_end_offset
        self._room.note(self, is_behind=self.lag > 0)
        self._body, self._told = exchange.body, answer
        self._held = 0 if exchange.body is None else len(exchange.body)
        self._room.hold(self._held)
        before, asked = self.follower.high_watermark, self.follower.outstanding
        effect = self.follower.answered(
            _answer_from(answer), first_stored=self.host.log.view.first_stored_offset
        )
        if self.follower.high_watermark > before:
            self.host.commit_up_to(self.follower.high_watermark)
        self._follow_log_start(answer.log_start_offset)
        self._note_record(answer)
        if answer.has_consumers and self._consumers is not None:
            self._consumers.wanted()
        if effect is None and self.follower.working is None:
            self._free()
            if self.follower.outstanding is asked:
                self.follower.lost()  # the answer did not match, and no other answer will arrive
            if self.follower.waits_for_version > self.follower.record.version:
                self._tell_record_is_old()
            self._ask_later()
        self._do(effect)

    def _note_record(self, answer: Replica) -> None:
        """Adopt newer metadata, or request them. The leader may not count the records of this node
        before the node has the newer metadata. The notification of the metadata store may arrive
        late, or not at all if the store is unreachable."""
        if answer.record_version <= self.follower.record.version:
            return
        if answer.record is None:
            self._tell_record_is_old()
            return
        try:
            record = StreamMetadata.from_json(answer.record)
        except LiftlogError as error:
            logger.warning("record-not-understood stream=%s error=%s", self.host.name, error)
            return
        if record.name == self.host.name:
            self._learn(record)

    def _refused(self, error: LiftlogError) -> None:
        self.follower.lost()
        if isinstance(error, NotLeader | FencedEpoch | UnknownEpoch | StaleIncarnation):
            self._tell_record_is_old()
        self._ask_later()

    def _ask_later(self) -> None:
        if self._closed or self._timer is not None:
            return
        pause, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
        self._timer = self._loop.call_later(pause, self._resume)

    def _resume(self) -> None:
        self._cancel_timer()
        if not self._closed:
            self._do(self.follower.resumed())

    def _cancel_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    # --- the log ---

    def _follow_log_start(self, log_start: int) -> None:
        """Delete records that the leader has deleted, up to the high watermark."""
        log = self.host.log
        reached = min(log_start, log.high_watermark)
        if reached <= log.log_start_offset or self._is_deleting:
            return
        self._is_deleting = True

        def done(future: asyncio.Future[object]) -> None:
            self._is_deleting = False
            error = None if future.cancelled() else future.exception()
            if error is not None and not self._closed:
                logger.warning("log-start-kept stream=%s error=%s", self.host.name, error)

        now_ns = log.environment.age_clock_ns()
        call = partial(follow_log_start, log, reached, self.host.settings, now_ns)
        self.host.run_exclusive(call).add_done_callback(done)

    def _store(self) -> None:
        """Append the records of the answer. Publishers wait for this append. If the disk is fast, a
        small append runs inside the event loop, because two handovers between threads take
        longer."""
        body, self._body = self._body, None
        told = None if self._told is None else self._told.side_state
        append = partial(self._append, body, told)
        if body is not None and len(body) <= _INLINE_BYTES and told is None:
            try:
                if self.host.run_inline(append):
                    self._changed(None)
                    return
            except Exception as error:  # noqa: BLE001  # `_changed` tells a defect from a failure
                self._changed(error)
                return
        self._change(append)

    def _change(self, call: Callable[[], object]) -> None:
        """Change the log durably in a writer thread, then continue."""
        self.host.run_exclusive(call).add_done_callback(self._ended)

    def _ended(self, future: asyncio.Future[object]) -> None:
        if future.cancelled():
            self._free()
        else:
            self._changed(future.exception())

    def _changed(self, error: BaseException | None) -> None:
        log = self.host.log
        self._free()
        if self._closed:
            return
        self.is_full = isinstance(error, DiskFull)
        if error is None:
            self._room.note(self, is_behind=self.lag > 0)
            side = log.leases.side_state.version
            effect = self.follower.stored(log.durable_end_offset, log.view.manifest.epochs, side)
            self._do(effect)  # first, because acks wait for the confirmation in this request
            self.host.commit_up_to(self.follower.high_watermark)
            self._log_changed()
        elif isinstance(error, CorruptBatch):
            # Nothing was appended. The leader's bytes are damaged, or were damaged in transit.
            logger.warning("replica-answer-damaged stream=%s error=%s", self.host.name, error)
            self._do(self.follower.damaged())
        elif isinstance(error, UnsupportedFormat):
            self._fail(f"the leader sent data that this version cannot read: {error}")
        elif isinstance(error, LiftlogError):
            logger.error("replica-not-stored stream=%s error=%s", self.host.name, error)
            self.follower.failed(log.durable_end_offset, log.view.manifest.epochs)
            self._ask_later()
        else:
            self._fail(f"internal error while following: {error!r}")

    def _append(self, body: memoryview | None, told: dict[str, Any] | None) -> None:
        """Store the side state of an answer, then append its records. The next request confirms
        both."""
        log = self.host.log
        if told is not None:
            try:
                log.leases.copy(SideState.from_dict(told))
            except CorruptMetadata as error:
                raise CorruptBatch(f"the leader's answer cannot be used: {error}") from error
        if body is None:
            return
        end = log.log_end_offset
        try:
            log.writer.append_raw(body)
        except ValueError as error:  # the batches are whole, but do not continue the log
            raise CorruptBatch(
                f"the leader's answer does not continue this log: {error}"
            ) from error
        self.host.observed.copied(log.log_end_offset - end, len(body))
        try:
            known = None if self._told is None else self._told.high_watermark
            if known is not None and known <= end < log.log_end_offset:
                # None of these records is committed, so they were written just now.
                log.arrived_now(end, parse_header(body).max_timestamp_ns)
            log.writer.note_acked(log.sync())
        except SyncFailed:
            # Records that were not durable were not confirmed, so the leader sends them again. If
            # this call also fails, the log still ends at its durable end.
            log.writer.abandon_tail(keep_offsets=False)
            raise

    def _truncate(self, cut: Truncate) -> None:
        self.host.log.truncate_suffix(cut.end, below_high_watermark=cut.below_high_watermark)

    def _skip(self, gap: Gap) -> None:
        told: dict[str, Any] = self._told.gap or {} if self._told is not None else {}
        log = self.host.log
        log.writer.append_gap(
            gap.next_offset,
            str(told.get("reason", "the leader has no records there"))[:_MAX_REASON_CHARS],
            is_loss=bool(told.get("loss", False)),
            epochs=gap.epochs,
        )

    def _start_over(self, again: Resync) -> None:
        self.host.log.start_over(
            again.offset,
            epoch_before=0 if self._told is None else self._told.first_epoch,
            tombstones_removed_below=again.tombstones_removed_below,
        )


def _answer_from(received: Replica) -> Answer:
    """Convert the message of another node. Its content is not trusted. Values of a wrong form are
    left out. The rules of `liftlog.cluster` check all other values, and the log checks the body."""
    diverging = received.diverging
    gap = None
    if received.gap is not None and type(received.gap.get("next")) is int:
        gap = Gap(received.gap["next"], _epochs_from(received.gap.get("epochs")))
    return Answer(
        received.epoch,
        received.offset,
        received.last_epoch,
        received.record_version,
        high_watermark=received.high_watermark,
        first_stored=received.first_stored,
        tombstones_removed_below=received.tombstones_removed_below,
        diverging=(diverging[0], diverging[1]) if diverging and len(diverging) == 2 else None,
        gap=gap,
        has_content=received.body_length > 0 or received.side_state is not None,
        side_version=_version_of(received.side_state),
        brings_record=received.record is not None,
        checksum=received.record_checksum,
    )


def _version_of(side_state: dict[str, Any] | None) -> int | None:
    version = None if side_state is None else side_state.get("version")
    return version if type(version) is int else None


def _epochs_from(value: object) -> tuple[tuple[int, int], ...]:
    if not isinstance(value, list):
        return ()
    pairs = [one for one in value if isinstance(one, list) and len(one) == 2]
    return tuple((epoch, start) for epoch, start in pairs if type(epoch) is type(start) is int)
