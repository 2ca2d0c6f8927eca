"""The input of a run: the offsets that it reads, protected by a lease."""

from __future__ import annotations

from dataclasses import dataclass, replace

from liftlog.client import LeaseInfo, StreamInfo, SyncClient
from liftlog.errors import CorruptRange, Diverged, Forbidden, OffsetOutOfRange
from liftlog.log.read.measuring import Extent
from liftlog.spark.daemon_transport import measured
from liftlog.spark.export.planning import Beginning, ExportRequest, StreamView, decide
from liftlog.spark.export.snapshot import Lost, Snapshot, merged_losses
from liftlog.spark.scan import split, step_of
from liftlog.spark.transport import ScanRange, StreamState


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The input of a run, and the decision that led to it. The input does not change while the
    lease lasts."""

    beginning: Beginning
    view: StreamView
    info: StreamInfo
    lease: LeaseInfo

    @property
    def is_key_value(self) -> bool:
        """True if the stream may contain a key-value bucket of JetStream's clients."""
        jetstream = self.info.settings.get("jetstream")
        return isinstance(jetstream, dict) and jetstream.get("max_msgs_per_subject") is not None

    @property
    def end_offset(self) -> int:
        return self.lease.high

    @property
    def is_empty(self) -> bool:
        """True if the run reads no records."""
        return self.beginning.from_offset >= self.end_offset

    def because(self, reason: str) -> RunPlan:
        return replace(self, beginning=replace(self.beginning, reason=reason))

    def ranges(self, client: SyncClient, target_bytes: int) -> list[ScanRange]:
        """Return the run's range of offsets in parts, one for each task. Each task renews the
        lease. Raises LiftlogError."""
        info, lease = self.info, self.lease
        whole = Extent(info.log_start_offset, max(info.log_end_offset, lease.high), info.size_bytes)
        state = StreamState(
            stream=info.name,
            identity=info.incarnation,
            leader_epoch=info.leader_epoch,
            log_start_offset=info.log_start_offset,
            end_offset=lease.high,
            extents=(whole,) if whole.next_offset > whole.first_offset else (),
        )
        first = self.beginning.from_offset
        state = measured(client, state, first, step_of(target_bytes))
        planned = split(state, first, lease.high, target_bytes)
        return [replace(one, lease_id=lease.lease_id) for one in planned]

    def known_losses(self) -> tuple[Lost, ...]:
        """Return the records of the range that are known to be lost. Tasks may find further
        losses."""
        first, end = self.beginning.from_offset, self.end_offset
        found = list(self.beginning.lost)
        for bad in self.info.quarantined:
            bad_first = max(int(bad.get("first_offset", 0)), first)
            bad_next = min(int(bad.get("next_offset", 0)), end)
            if bad_first < bad_next:
                found.append(Lost(bad_first, bad_next, str(bad.get("reason", "damaged"))))
        return merged_losses(found)


def dry_plan(client: SyncClient, request: ExportRequest, previous: Snapshot | None) -> RunPlan:
    """Return the plan of a dry run, without a lease."""
    view, info = _look(client, request.stream, previous)
    beginning = decide(request, previous, view)
    lease = LeaseInfo(low=beginning.from_offset, high=info.high_watermark)
    return RunPlan(beginning, view, info, lease)


def plan_under_lease(
    client: SyncClient, request: ExportRequest, previous: Snapshot | None
) -> RunPlan:
    """Decide at which offset to begin, and acquire a lease from that offset on. If the decision has
    changed before the lease is granted, begin again.

    Raises the errors of `decide` and of the daemon.
    """
    view, info = _look(client, request.stream, previous)
    while True:
        beginning = decide(request, previous, view)
        try:
            lease = client.acquire_lease(
                request.stream,
                beginning.from_offset,
                ttl=request.lease_seconds,
                holder=request.consumer,
                incarnation=info.incarnation,
                for_export=True,
            )
        except OffsetOutOfRange:  # retention has meanwhile moved the log start
            view, info = _look(client, request.stream, previous)
            if view.log_start_offset <= beginning.from_offset:
                raise
            continue
        try:
            view, info = _look(client, request.stream, previous, lease.high)
            again = decide(request, previous, view)
            if info.high_watermark < lease.high or info.incarnation != lease.incarnation:
                raise Diverged(f"{request.stream!r} has just lost its end", hint="run it again")
            if (again.from_offset, again.full) == (beginning.from_offset, beginning.full):
                return RunPlan(again, view, info, lease)
        except BaseException:
            client.release_lease(request.stream, lease.lease_id)
            raise
        client.release_lease(request.stream, lease.lease_id)


def _look(
    client: SyncClient, stream: str, previous: Snapshot | None, end: int | None = None
) -> tuple[StreamView, StreamInfo]:
    info = client.describe_stream(stream)
    if info.readable_subjects:
        # The table would keep a value that a record on another subject has superseded or deleted,
        # until compaction removes the old record from the log.
        raise Forbidden(
            f"an export needs all of {stream!r}, and only {', '.join(info.readable_subjects)} may "
            "be read",
            hint="grant read on the stream without subjects, or select these subjects into a "
            "stream of their own and export that",
        )
    removed_below = info.compaction.get("tombstones_removed_below", 0)
    cleaned_below = info.compaction.get("cleaned_below", 0)
    view = StreamView(
        stream=stream,
        incarnation=info.incarnation,
        log_start_offset=info.log_start_offset,
        high_watermark=info.high_watermark if end is None else end,
        tombstones_removed_below=removed_below if isinstance(removed_below, int) else 0,
        cleaned_below=cleaned_below if isinstance(cleaned_below, int) else 0,
        diverged=_divergence(client, info, previous),
    )
    return view, info


def _divergence(client: SyncClient, info: StreamInfo, previous: Snapshot | None) -> str:
    """Return the reason why the history of the stream has changed although its incarnation is the
    same; empty if the history is the same."""
    if previous is None or previous.stream != info.name:
        return ""
    if previous.incarnation != info.incarnation or previous.to_offset < info.log_start_offset:
        return ""
    try:
        client.fetch(
            info.name,
            previous.to_offset,
            max_bytes=1,
            incarnation=previous.incarnation,
            epoch=previous.epoch,
        )
    except Diverged as error:
        return error.message
    except OffsetOutOfRange as error:
        end = error.details.get("log_end_offset", 0)
        if isinstance(end, int) and end < previous.to_offset:
            return f"the log ends at {end}, before what was exported, {previous.to_offset}"
    except CorruptRange:
        pass
    return ""
