"""Readers of replicated streams that run during the faults of a campaign, and the records that they
have read."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, ClassVar

from support.daemons.cluster import NODES, PATIENCE, Cluster, as_stored
from support.worlds.history import Reading, Stored

from liftlog.client import SyncClient, connect_sync
from liftlog.errors import CorruptRange, Diverged, LiftlogError, OffsetOutOfRange

_LOOK_SECONDS = 0.2


class CampaignReader(threading.Thread):
    """Reads some streams repeatedly until it is stopped. `take` returns the records since the last
    call."""

    NAME: ClassVar[str]

    def __init__(self, cluster: Cluster, streams: Iterable[str]) -> None:
        super().__init__(name=self.NAME, daemon=True)
        self.error: BaseException | None = None
        self._cluster = cluster
        self._streams = list(streams)
        self._stop_asked = threading.Event()

    def finish(self) -> None:
        self._stop_asked.set()
        self.join(2 * PATIENCE)
        assert not self.is_alive(), f"{self.name} does not end"
        if self.error is not None:
            raise self.error

    def take(self, stream: str) -> list[Reading]:
        raise NotImplementedError


class CopyReader(CampaignReader):
    """Reads every copy from its last position on, and records the results."""

    NAME = "copy-reader"

    def __init__(self, cluster: Cluster, streams: Iterable[str]) -> None:
        super().__init__(cluster, streams)
        self._got: dict[str, deque[tuple[str, Stored]]] = {one: deque() for one in self._streams}
        self._clients: dict[str, SyncClient] = {}
        self._places: dict[tuple[str, str], int] = {}

    def run(self) -> None:
        while not self._stop_asked.wait(_LOOK_SECONDS):
            for node in NODES:
                try:
                    self._read_node(node)
                except Diverged as error:
                    self.error = error  # records that were read do not exist any more
                    return
                except (LiftlogError, OSError, KeyError, IndexError):
                    self._drop(node)  # it is down, or going down
        for node in list(self._clients):
            self._drop(node)

    def _read_node(self, node: str) -> None:
        daemon = self._cluster.nodes[node]
        if node not in self._cluster.up():
            return
        if node not in self._clients:
            self._clients[node] = connect_sync(daemon.pull_address)
        for stream, got in self._got.items():
            place = self._places.get((stream, node), 1)
            try:
                for record in self._clients[node].read(
                    stream, start=place, until="end", replica=node
                ):
                    got.append((node, stored_of(record)))
                    place = record.offset + 1
            except CorruptRange as damage:
                place = damage.next_offset
            except OffsetOutOfRange as behind:
                place = max(place, int(behind.details["log_start_offset"]))
            self._places[stream, node] = place

    def _drop(self, node: str) -> None:
        client = self._clients.pop(node, None)
        if client is not None:
            with suppress(LiftlogError, OSError):
                client.close()

    def take(self, stream: str) -> list[Reading]:
        got = self._got[stream]
        seen: dict[str, list[Stored]] = {}
        for node, record in [got.popleft() for _ in range(len(got))]:
            seen.setdefault(node, []).append(record)
        return [
            _partial(node, piece) for node, records in seen.items() for piece in _ascending(records)
        ]


class CheckpointReader(CampaignReader):
    """An application with a checkpoint in each stream. It reads from the checkpoint on through any
    node, stores the next checkpoint, and is stopped. It must skip no record, and its checkpoints
    must never decrease."""

    NAME = "checkpoint-reader"

    def __init__(self, cluster: Cluster, streams: Iterable[str]) -> None:
        super().__init__(cluster, streams)
        self._got: dict[str, deque[Reading]] = {name: deque() for name in self._streams}
        self._stored = dict.fromkeys(self._streams, 0)
        self._why: Exception | None = None
        nodes = (cluster.nodes[name] for name in NODES)
        self._addresses = ",".join(node.settings["cluster"]["advertise"] for node in nodes)

    def run(self) -> None:
        try:
            while not self._stop_asked.wait(_LOOK_SECONDS):
                for stream in self._streams:
                    self._goes_on(stream)
            for stream in self._streams:  # all nodes run by now
                deadline = time.monotonic() + PATIENCE
                while not self._goes_on(stream):
                    assert time.monotonic() < deadline, f"no checkpoint in {stream}: {self._why!r}"
        except (AssertionError, Diverged) as error:
            self.error = error

    def _goes_on(self, stream: str) -> bool:
        try:
            self._consume(stream)
        except Diverged:  # records that were read do not exist any more
            raise
        except (LiftlogError, OSError) as error:  # nodes are down
            self._why = error
            return False
        return True

    def _consume(self, stream: str) -> None:
        with connect_sync(self._addresses, connect_timeout=2, reconnect_for=5) as client:
            try:
                found = client.fetch_checkpoint(self.name, stream)
                start = 1 if found is None else found.offset
            except OffsetOutOfRange as behind:  # retention overtook it
                start = int(behind.details["log_start_offset"])
            assert start >= self._stored[stream], (
                f"{stream}: the checkpoint went back from {self._stored[stream]} to {start}"
            )
            try:
                records = [*map(stored_of, client.read(stream, start=start, until="end"))]
            except OffsetOutOfRange as behind:
                start = int(behind.details["log_start_offset"])
                records = [*map(stored_of, client.read(stream, start=start, until="end"))]
            if not records:
                return
            end = records[-1].offset + 1
            self._got[stream].append(Reading(self.name, start, end, records))
            client.commit_checkpoint(self.name, stream, end)
            self._stored[stream] = end

    def take(self, stream: str) -> list[Reading]:
        got = self._got.get(stream, deque())
        return [got.popleft() for _ in range(len(got))]


def stored_of(record: Any) -> Stored:
    """Return a record with the name of its message, and a digest of the content that must be equal
    on all replicas."""
    publisher, _, last = record.subject.rpartition(".")
    if record.headers.get("Number"):
        message = (record.subject, int(record.headers["Number"]))
    elif record.value == b"" and last.isdigit():
        message = (publisher, int(last))
    else:
        message = as_stored(record).message
    around = repr((record.timestamp_ns, record.subject, [*record.headers.items()]))
    digest = hashlib.blake2b((record.value or b"") + around.encode(), digest_size=8).digest()
    return Stored(record.offset, message, digest, record.key, record.value is None)


def _ascending(records: list[Stored]) -> list[list[Stored]]:
    """Divide the records into ascending pieces, because a reader begins again after some errors."""
    pieces: list[list[Stored]] = []
    for record in records:
        if not pieces or record.offset <= pieces[-1][-1].offset:
            pieces.append([])
        pieces[-1].append(record)
    return pieces


def _partial(node: str, records: list[Stored]) -> Reading:
    """Return an incomplete read of a consumer. It proves which records exist, but not which are
    missing."""
    start, end = records[0].offset, records[-1].offset + 1
    return Reading(f"a consumer of {node}", start, end, records, damaged=[(start, end)])
