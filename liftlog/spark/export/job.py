"""One run of the export, from the previous snapshot of the table to the next one.

    1  read the newest snapshot, and fix the end: take a lease up to the current high watermark
    2  if records were erased since, rewrite the files that hold their rows, without these rows;
       scan [end of the snapshot, high watermark) into files of this run
    3  in mode compacted, merge the newest records of keys with the snapshot's records into new
       files, or, with merge on read, add files of changes (`changes`); with --optimize, merge
       small files into a few large files
    4  commit the snapshot in one atomic step
    5  store the checkpoint, and remove unneeded files; neither is needed for correctness

A run that ends before step 4 has changed nothing; a run that ends after step 4 is complete.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from liftlog.client import SyncClient
from liftlog.errors import Conflict, CorruptMetadata, LeaseGone, LiftlogError, StorageError
from liftlog.spark.daemon_transport import connect
from liftlog.spark.export.buckets import BUCKET_BYTES
from liftlog.spark.export.changes import Rows, add_changes, fold, must_fold
from liftlog.spark.export.erasing import Erased, erased_since, without_erased
from liftlog.spark.export.files import STAGED
from liftlog.spark.export.merging import MergeWork, buckets_to_stage
from liftlog.spark.export.opening import open_table, rows_in_doubt
from liftlog.spark.export.packing import PackWork, can_be_packed, plan_packing
from liftlog.spark.export.planning import (
    ExportRequest,
    check_full_keeps_rows,
    check_replaces_unknown,
    is_up_to_date,
    layout_of,
)
from liftlog.spark.export.run_plan import RunPlan, dry_plan, plan_under_lease
from liftlog.spark.export.scanning import ScanTask, ScanWork
from liftlog.spark.export.snapshot import Layout, Lost, Mode, Snapshot, merged_losses
from liftlog.spark.export.store import join
from liftlog.spark.export.table import Table, another_was_quicker
from liftlog.spark.export.tasks import Engine, Task, TaskResult, Tell
from liftlog.spark.leases import RenewedLease
from liftlog.spark.options import COMPACT_PARTITION_BYTES, DEFAULT_PARTITION_BYTES, ScanOptions

logger = logging.getLogger("liftlog.spark.export")


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a run. If `committed` is false, the run had nothing to do, or was a dry run.

    `files`, `rows` and `size_bytes` describe the files that the run has written; `written_share` is
    `size_bytes` divided by the size of the table. `erased_rows` is the number of rows of erased
    records that were in the replaced files. The fields `table_...` describe the table after the
    run. `discards` describes removed rows that the stream no longer has. `lost` are the records
    that this run could not read. `keys_in_doubt` is the number of keys in the table whose newest
    value may be among lost records.
    """

    stream: str
    table: str
    format: str
    mode: Mode
    layout: Layout
    committed: bool
    full: bool
    reason: str
    from_offset: int
    to_offset: int
    sequence: int
    rows: int
    files: int
    size_bytes: int
    written_share: float
    erased_rows: int
    table_rows: int
    table_files: int
    table_bytes: int
    discards: str
    lost: tuple[Lost, ...]
    keys_in_doubt: int
    checkpoint: str
    seconds: float
    warnings: tuple[str, ...] = ()


class ExportJob:
    """One run of an export; create a new object for each run. `options` contain the address and the
    login with which every host connects to the daemon."""

    def __init__(
        self,
        request: ExportRequest,
        options: ScanOptions,
        engine: Callable[[], Engine],
        *,
        tell: Tell = lambda phase, done, total: None,
        now_ns: Callable[[], int] = time.time_ns,
        table: Table | None = None,
    ) -> None:
        self._request = request
        self._options = replace(
            options,
            stream=request.stream,
            columns=request.columns,
            fail_on_data_loss=not request.skip_lost,
            lease_seconds=request.lease_seconds,
        )
        self._make_engine = engine
        self._tell = tell
        self._now_ns = now_ns
        self._table = table or open_table(request)
        self._warnings: list[str] = []
        self._lost: tuple[Lost, ...] = ()
        self._erased, self._erased_rows = Erased(), 0
        self._started = time.monotonic()

    def run(self) -> Summary:
        """Run the export. Raises LiftlogError."""
        request, table = self._request, self._table
        with self._connect() as client:
            client.describe_stream(request.stream)  # before anything is created
            if not request.dry_run:
                table.prepare()
            # The number is determined before the snapshot is read. If another run commits in
            # between, it has this number, and the commit of this run fails.
            sequence = table.next_sequence()
            previous = self._previous()
            if request.dry_run:
                return self._summary(dry_plan(client, request, previous), previous, None)
            engine = _OnDemand(self._make_engine)
            plan = plan_under_lease(client, request, previous)
            self._erased = self._erasures(client, plan, previous)
            if plan.is_empty and self._erased.concerns(previous):
                plan = plan.because("records of the table were erased")
            held = RenewedLease(
                self._connect,
                request.stream,
                plan.lease.lease_id,
                request.lease_seconds,
                engine.cancel,
            )
            made: Snapshot | None = None
            with held:
                if self._has_work(plan, previous):
                    made = self._make(client, held, engine, plan, previous, sequence)
            if made is not None:
                self._commit(made, previous)
            self._store_checkpoint(client, plan)
        self._vacuum()
        return self._summary(plan, previous, made)

    def _connect(self) -> SyncClient:
        return connect(self._options)

    def _has_work(self, plan: RunPlan, previous: Snapshot | None) -> bool:
        if not is_up_to_date(previous, plan.beginning, plan.view):
            return True
        assert previous is not None
        if self._erased.concerns(previous):
            return True
        request = self._request
        if layout_of(request, previous, plan.beginning.mode) != previous.layout:
            return True
        if request.optimize and previous.has_changes:
            return True
        return request.optimize and can_be_packed(previous.files, request.partition_bytes)

    def _previous(self) -> Snapshot | None:
        try:
            return self._table.newest()
        except CorruptMetadata as error:
            if not self._request.full:
                raise
            check_replaces_unknown(self._request, error.message)
            self._warn(f"{error.message}; the table is replaced without checking its content")
            return None

    def _erasures(self, client: SyncClient, plan: RunPlan, previous: Snapshot | None) -> Erased:
        """Return the erased records whose rows the table may have."""
        is_new = previous is None or plan.beginning.full
        found = erased_since(client, self._request.stream, None if is_new else previous)
        if is_new:
            return Erased(found.newest)
        if found.unknown:
            self._warn(
                f"{found.unknown} records of {self._request.stream} were erased so long ago that "
                "their offsets are not known any more: if an earlier run has exported them, only "
                "--full removes their rows"
            )
        if not found.is_listed:
            self._warn(
                f"the list of erasures of {self._request.stream} is older than the table, or was "
                "lost (a backup does not have it): the table may still have rows of erased "
                "records, which only --full removes"
            )
        return found

    # --- 2 and 3: the files ---

    def _make(
        self,
        client: SyncClient,
        held: RenewedLease,
        engine: Engine,
        plan: RunPlan,
        previous: Snapshot | None,
        sequence: int,
    ) -> Snapshot:
        table, request, beginning = self._table, self._request, plan.beginning
        run = uuid.uuid4().hex
        if previous is not None and sequence != previous.sequence + 1:
            raise another_was_quicker(request.to, previous)
        directory = table.run_directory(sequence, run)
        table.store.make_directory(join(directory, STAGED))
        try:
            rows = self._write(client, held, engine, plan, previous, directory)
        except (LiftlogError, OSError) as error:
            self._clean_up(directory)
            if table.next_sequence() != sequence:  # the other run has removed the files of this one
                raise another_was_quicker(request.to, table.newest()) from error
            if isinstance(error, LeaseGone):
                raise held.explained() from error
            raise held.gone or error from None
        except BaseException:
            self._clean_up(directory)
            raise
        return Snapshot(
            sequence=sequence,
            run=run,
            previous_run="" if previous is None else previous.run,
            stream=request.stream,
            incarnation=plan.info.incarnation,
            epoch=plan.info.leader_epoch,
            mode=beginning.mode,
            full=beginning.full,
            reason=beginning.reason,
            from_offset=beginning.from_offset,
            to_offset=plan.end_offset,
            log_start_offset=plan.view.log_start_offset,
            columns=request.columns,
            created_ns=self._now_ns(),
            files=tuple(rows.files),
            lost=_lost_so_far(plan, previous, self._lost),
            removed=tuple(rows.removed),
            layout=layout_of(request, previous, beginning.mode),
            erasures=self._erased.newest,
        )

    def _write(
        self,
        client: SyncClient,
        held: RenewedLease,
        engine: Engine,
        plan: RunPlan,
        previous: Snapshot | None,
        directory: str,
    ) -> Rows:
        request, beginning = self._request, plan.beginning
        compacted = beginning.mode == "compacted"
        default = COMPACT_PARTITION_BYTES if compacted else DEFAULT_PARTITION_BYTES
        range_bytes = request.partition_bytes or default
        bucket_bytes = request.partition_bytes or BUCKET_BYTES
        old = Rows([], [])
        if previous is not None and not beginning.full:
            old = Rows(list(previous.files), list(previous.removed))
            erasing = PackWork(self._table.store.uri, directory, request.columns)
            old, self._erased_rows = without_erased(engine, self._tell, erasing, old, self._erased)
        ranges = plan.ranges(client, range_bytes)
        most_bytes = len(ranges) * range_bytes
        buckets = buckets_to_stage([*old.files, *old.removed], most_bytes, bucket_bytes)
        options = replace(self._options, compact=compacted)
        where = self._table.store.uri  # absolute, because tasks have other working directories
        work = ScanWork(
            where, directory, beginning.mode, options, buckets, compacted and plan.is_key_value
        )
        scanned = engine.run("scan", [ScanTask(work, one) for one in ranges], self._tell)
        held.confirm(client)
        found = [one for result in scanned for one in result.lost]
        self._lost = merged_losses([*plan.known_losses(), *found]) if request.skip_lost else ()
        check_full_keeps_rows(request, previous, self._lost)
        rows = old
        if compacted:
            staged = [file for result in scanned for file in result.staged]
            merge = MergeWork(where, directory, request.columns, plan.view.log_start_offset)
            layout = layout_of(request, previous, beginning.mode)
            on_read = layout == "merge-on-read" and not request.optimize
            if on_read and not must_fold(old, staged):
                rows = add_changes(engine, self._tell, merge, old, staged, bucket_bytes)
            else:
                rows = fold(engine, self._tell, merge, old, staged, buckets, bucket_bytes)
        rows.files.extend([file for result in scanned for file in result.files])
        self._check_visible(directory, rows)
        if not request.optimize:
            return rows
        pack = PackWork(where, directory, request.columns)
        stay, packing = plan_packing(pack, rows.files, request.partition_bytes)
        packed = engine.run("optimize", packing, self._tell)
        rows = Rows(stay + [file for result in packed for file in result.files], rows.removed)
        self._check_visible(directory, rows)
        return rows

    def _check_visible(self, directory: str, rows: Rows) -> None:
        """Check that the driver can read the files that the tasks of this run have written. Raises
        StorageError otherwise."""
        for file in [*rows.files, *rows.removed]:
            if not file.path.startswith(join(directory, "")):
                continue
            if self._table.store.size(file.path) != file.size_bytes:
                raise StorageError(
                    f"{file.path} was written by a task, but is not in {self._request.to} on the "
                    "driver's host",
                    hint="--to must be a directory that all hosts share",
                )

    def _clean_up(self, directory: str) -> None:
        try:
            self._table.store.remove(directory)
        except LiftlogError as error:
            logger.warning("run-not-removed directory=%s error=%s", directory, error)

    # --- 4 and 5 ---

    def _commit(self, snapshot: Snapshot, previous: Snapshot | None) -> None:
        try:
            self._table.commit(snapshot, previous)
        except Conflict:
            directory = self._table.run_directory(snapshot.sequence, snapshot.run)
            self._clean_up(directory)
            raise

    def _store_checkpoint(self, client: SyncClient, plan: RunPlan) -> None:
        try:
            client.commit_checkpoint(
                self._request.consumer,
                self._request.stream,
                plan.end_offset,
                incarnation=plan.info.incarnation,
                epoch=plan.info.leader_epoch,
                metadata=f"export to {self._request.to}"[:200],
            )
        except LiftlogError as error:
            self._warn(f"the checkpoint {self._request.consumer} was not stored: {error.message}")

    def _vacuum(self) -> None:
        try:
            request, table = self._request, self._table
            keep = None if request.format == "delta" else request.keep_seconds
            for path in table.garbage(self._now_ns(), keep):
                table.store.remove(path)
        except (LiftlogError, OSError) as error:
            self._warn(f"old files were not removed: {error}")

    def _keys_in_doubt(self, snapshot: Snapshot | None) -> int:
        if snapshot is None:
            return 0
        try:
            return sum(batch.num_rows for batch in rows_in_doubt(self._table.store, snapshot))
        except LiftlogError as error:
            self._warn(f"the keys in doubt were not counted: {error.message}")
            return 0

    def _warn(self, text: str) -> None:
        logger.warning("%s", text)
        self._warnings.append(text)

    def _summary(self, plan: RunPlan, previous: Snapshot | None, made: Snapshot | None) -> Summary:
        request, now = self._request, made or previous
        files = [] if made is None else [one for one in made.all_files if made.run in one.path]
        size_bytes = sum(file.size_bytes for file in files)
        table_bytes = 0 if now is None else now.size_bytes
        beginning = plan.beginning
        return Summary(
            stream=request.stream,
            table=request.to,
            format=request.format,
            mode=beginning.mode,
            layout=layout_of(request, previous, beginning.mode),
            committed=made is not None,
            full=beginning.full,
            reason=beginning.reason,
            from_offset=beginning.from_offset,
            to_offset=plan.end_offset,
            sequence=0 if now is None else now.sequence,
            rows=sum(file.rows for file in files if file.kind != "removed"),
            files=len(files),
            size_bytes=size_bytes,
            written_share=round(size_bytes / table_bytes, 6) if table_bytes else 0.0,
            erased_rows=self._erased_rows,
            table_rows=0 if now is None else now.rows,
            table_files=0 if now is None else len(now.all_files),
            table_bytes=table_bytes,
            discards=beginning.discards,
            lost=plan.known_losses() if request.dry_run else self._lost,
            keys_in_doubt=self._keys_in_doubt(now),
            checkpoint=request.consumer,
            seconds=round(time.monotonic() - self._started, 3),
            warnings=tuple(self._warnings),
        )


def _lost_so_far(
    plan: RunPlan, previous: Snapshot | None, lost: tuple[Lost, ...]
) -> tuple[Lost, ...]:
    """Return the lost records of this run and of earlier runs that the table still lacks. A loss is
    remembered until the next full run, and in mode compacted only until retention deletes the lost
    offsets."""
    if previous is None or plan.beginning.full:
        return lost
    before = previous.lost
    if plan.beginning.mode == "compacted":
        start = plan.view.log_start_offset
        before = tuple([one for one in before if one.next_offset > start])
    return merged_losses([*before, *lost])


class _OnDemand:
    """An engine that starts Spark only if there is more than one task, because Spark takes ten
    seconds to start."""

    def __init__(self, make: Callable[[], Engine]) -> None:
        self._make = make
        self._engine: Engine | None = None

    def run(self, phase: str, tasks: Sequence[Task], tell: Tell) -> list[TaskResult]:
        if len(tasks) < 2:
            return [task.run() for task in tasks]
        return self._started().run(phase, tasks, tell)

    def cancel(self) -> None:
        if self._engine is not None:
            self._engine.cancel()

    def _started(self) -> Engine:
        if self._engine is None:
            self._engine = self._make()
        return self._engine
