"""The small files of a stream and of the data directory, with the functions that store and read
each of them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from support.disks.logs import DIRECTORY, Promises, commit, create
from support.disks.simfs import SimFileSystem

from liftlog.cluster.store import MetaStoreError
from liftlog.errors import StorageError
from liftlog.log import Log
from liftlog.sequencing import DedupeWindow
from liftlog.sequencing.subject_sequences import SubjectSequences
from liftlog.server.cleaning.next_segments import ScrubSchedule
from liftlog.server.commits.subjects import restore_subject_snapshot, write_subject_snapshot
from liftlog.server.metadata.known_records import KnownRecords
from liftlog.server.metadata.membership import NodeFile, read_node_file, write_node_file
from liftlog.server.metadata.records_file import Change, RecordsFile
from liftlog.server.streams.dedupe_restoring import begin_to_learn, write_dedupe_snapshot
from liftlog.server.vitals.clock_guard import ClockState, read_clock_state, write_clock_state

DATA_DIR = DIRECTORY.parent.parent


class SmallFile:
    """One small file on a disk of its own. Its content is a number."""

    name = ""
    is_hint = False
    """True if the file counts as missing after an error."""
    can_be_made_again = False
    """True if the file counts as missing when the disk cannot read its bytes."""

    def __init__(self) -> None:
        self.fs = SimFileSystem()
        self.log: Log = create(self.fs)
        commit(self.log, Promises(), 3)
        self.path = DATA_DIR / self.name

    def write(self, number: int) -> None:
        raise NotImplementedError

    def read(self) -> int | None:
        raise NotImplementedError


class Node(SmallFile):
    name = "node"

    def write(self, number: int) -> None:
        write_node_file(self.fs, DATA_DIR, NodeFile("cluster", "a", "data", number, number))

    def read(self) -> int | None:
        file = read_node_file(self.fs, DATA_DIR)
        return None if file is None else file.start


class Records(SmallFile):
    name = "records"
    can_be_made_again = True

    def write(self, number: int) -> None:
        file = RecordsFile(self.path, self.fs, lock=None)
        stored = file.read().entries.get("stream.orders")
        revision = 0 if stored is None else stored.entry.revision
        [result] = file.apply([Change("stream.orders", b"%d" % number, revision)])
        if isinstance(result, MetaStoreError):
            raise result

    def read(self) -> int | None:
        stored = RecordsFile(self.path, self.fs, lock=None).read().entries.get("stream.orders")
        return None if stored is None else int(stored.entry.value)


class KnownFile(SmallFile):
    name = "known-records"

    def _opened(self) -> KnownRecords:
        known = KnownRecords(self.fs, DATA_DIR)
        known.read()
        return known

    def write(self, number: int) -> None:
        asyncio.run(self._opened().hold("orders", str(number)))

    def read(self) -> int | None:
        known = self._opened()
        if known.problem:
            raise StorageError(known.problem)
        return next((number for number in (1, 2) if known.has_held("orders", str(number))), None)


class ClockFile(SmallFile):
    name = "clock"

    def write(self, number: int) -> None:
        write_clock_state(self.fs, DATA_DIR, ClockState(number, 1, "boot-1"))

    def read(self) -> int | None:
        state = read_clock_state(self.fs, DATA_DIR)
        return None if state is None else state.wall_ns


class Scrub(SmallFile):
    name = "scrub"
    is_hint = True

    def write(self, number: int) -> None:
        schedule = ScrubSchedule(self.fs, DATA_DIR, 1)
        view = SimpleNamespace(manifest=SimpleNamespace(quarantined=()))
        log: Any = SimpleNamespace(name="orders", incarnation="i", segments=(), view=view)
        assert schedule.next_job(log, number) is None  # the round begins
        schedule.save(["orders"])

    def read(self) -> int | None:
        schedule = ScrubSchedule(self.fs, DATA_DIR, 1)
        schedule.load()
        found = schedule._rounds.get("orders")
        return None if found is None else found.started_ns


class Dedupe(SmallFile):
    name = "dedupe"
    is_hint = True

    def __init__(self) -> None:
        super().__init__()
        self.path = DIRECTORY / self.name

    def write(self, number: int) -> None:
        window = DedupeWindow(10**9, 10)
        window.add(b"id", number, 1)
        write_dedupe_snapshot(self.log, window)

    def read(self) -> int | None:
        learned = begin_to_learn(self.log, DedupeWindow(10**9, 10))
        return learned.dedupe.lookup(b"id") if learned.end else None


class Subjects(SmallFile):
    name = "subjects"
    is_hint = True

    def __init__(self) -> None:
        super().__init__()
        self.path = DIRECTORY / self.name

    def _table(self) -> SubjectSequences:
        end, start = self.log.log_end_offset, self.log.log_start_offset
        return SubjectSequences(10, known_from=end, log_start_offset=lambda: start)

    def write(self, number: int) -> None:
        table = self._table()
        scan: Any = table.new_scan()
        scan.add([b"orders.new"], [number])
        scan.end = self.log.log_end_offset
        assert table.adopt(scan)
        write_subject_snapshot(self.log, table)

    def read(self) -> int | None:
        table = self._table()
        if not restore_subject_snapshot(self.log, table):
            return None
        return table.last_offset(b"orders.new")


SMALL_FILES: list[type[SmallFile]] = [
    Node,
    Records,
    KnownFile,
    ClockFile,
    Scrub,
    Dedupe,
    Subjects,
]
