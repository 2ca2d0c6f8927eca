"""A hundred sealed batches of one replica rot, under load, while readers read all the time.

All are repaired from other replicas, no reader waits for longer than 5 s, and afterwards the bytes
of all copies are equal. A campaign of `make cluster-torture`; `integration/test_cluster_readers`
has a short form. How long the repair took, and readers waited, is printed.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clients.ingesting import until
from support.daemons.cluster import NODES, PATIENCE, Cluster, RetryingPublisher, assert_kept
from support.daemons.nats_server import NatsServer
from support.disks.stored_logs import batch_positions, flip
from support.rounds import chance_of, rounds

from liftlog.client import connect_sync
from liftlog.errors import CorruptBatch, LiftlogError
from liftlog.records.header import parse_header, verify_body

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(36000),
    pytest.mark.skipif(not rounds(0), reason="a campaign: make cluster-torture"),
]

STREAM = "orders"
STREAMS = {
    STREAM: {
        "subject": "orders.>",
        "replicas": 3,
        "min_isr": 2,
        "segment": {"max_bytes": "64KiB"},
        "rebatch": {"enabled": False},
    }
}
ROTTEN = 100
_CANDIDATES = 4 * ROTTEN
REFUSED_SECONDS = 5.0


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


class SteadyReader(threading.Thread):
    """Reads one copy from `start` to its end repeatedly. After an error, it counts the stream as
    refused until it gets the next record."""

    def __init__(self, cluster: Cluster, node: str, start: int) -> None:
        super().__init__(name=f"reader-{node}", daemon=True)
        self.longest = 0.0
        """Longest wait for a stored record, in seconds."""
        self.passes = 0
        self.refusals: list[str] = []
        self._cluster, self._node, self._start = cluster, node, start
        self._ended = threading.Event()

    def run(self) -> None:
        node = self._node
        with connect_sync(self._cluster.nodes[node].pull_address) as client:
            place, got_at = self._start, time.monotonic()
            while not self._ended.is_set():
                try:
                    for record in client.read(STREAM, start=place, until="end", replica=node):
                        now = time.monotonic()
                        self.longest, got_at = max(self.longest, now - got_at), now
                        place = record.offset + 1
                    place, got_at = self._start, time.monotonic()
                    self.passes += 1
                except LiftlogError as error:
                    self.refusals.append(str(error))
                    self._ended.wait(0.05)
            self.longest = max(self.longest, time.monotonic() - got_at)

    def finish(self) -> None:
        self._ended.set()
        self.join(PATIENCE)
        assert not self.is_alive(), f"{self.name} does not end"


def files_of(cluster: Cluster, node: str) -> list[Path]:
    return sorted((cluster.nodes[node].data_dir / "streams" / STREAM).glob("*.log"))


def newest_sealed(cluster: Cluster, node: str) -> list[tuple[Path, int, int]]:
    """Return path, position and first offset of each batch. Older segments would only make rounds
    longer."""
    found = [
        (path, position, header.base_offset)
        for path in files_of(cluster, node)[:-1]
        for position, header in batch_positions(path)
    ]
    return found[-_CANDIDATES:]


def stored_bytes(path: Path) -> bytes:
    """Return all batches of a segment. Raises CorruptBatch."""
    raw, position = path.read_bytes(), 0
    while position < len(raw) and raw[position] != 0:
        header = parse_header(raw, position)
        verify_body(raw, header, position)
        position += header.length
    return raw[:position]


def is_whole(cluster: Cluster, node: str) -> bool:
    """Return True if all sealed batches are undamaged, and none is quarantined."""
    try:
        for path in files_of(cluster, node)[:-1]:
            stored_bytes(path)
    except (CorruptBatch, FileNotFoundError):  # it is damaged, or was just replaced
        return False
    return cluster.nodes[node].metric("liftlog_quarantined_ranges", stream=STREAM) == 0


def rot_and_repair(cluster: Cluster, node: str, chance: random.Random) -> tuple[float, float]:
    """Return the seconds until everything was repaired, and the longest wait of a reader."""
    until(lambda: len(newest_sealed(cluster, node)) >= 2 * ROTTEN, PATIENCE, "sealed batches")
    sealed = newest_sealed(cluster, node)
    readers = [SteadyReader(cluster, one, start=sealed[0][2]) for one in NODES]
    for reader in readers:
        reader.start()
    until(lambda: all(reader.passes for reader in readers), PATIENCE, "readers")
    began = time.monotonic()
    rotten = chance.sample(sealed, ROTTEN)
    for path, position, _ in rotten:
        flip(path, position + chance.choice([9, 90]))
    assert not is_whole(cluster, node)
    until(lambda: is_whole(cluster, node), PATIENCE, "repaired")
    took = time.monotonic() - began
    assert not any(path.exists() for path, _, _ in rotten), "a damaged file is still in use"
    seen = {reader: reader.passes for reader in readers}
    until(lambda: all(reader.passes > seen[reader] for reader in readers), PATIENCE, "readers")
    for reader in readers:
        reader.finish()
        assert not reader.refusals, f"{reader.name}: {reader.refusals[:3]}"
        assert reader.longest <= REFUSED_SECONDS, f"{reader.name}: {reader.longest:.1f} s"
    return took, max(reader.longest for reader in readers)


def test_rot_in_a_hundred_batches_is_repaired_while_readers_read(server: NatsServer) -> None:
    """Batches of a follower and of the leader rot in turn."""
    chance = chance_of("rot")
    took: list[tuple[float, float]] = []
    with Cluster(server.url, STREAMS) as cluster:
        cluster.wait_recorded(STREAM)
        publishers = [
            RetryingPublisher(server.port, f"orders.{one}", rate=200, pad=500, in_flight=2)
            for one in "pq"
        ]
        for publisher in publishers:
            publisher.start()
        for number in range(rounds(0)):
            followers = cluster.followers(STREAM)
            node = cluster.leader(STREAM) if number % 2 else chance.choice(followers)
            took.append(rot_and_repair(cluster, node, chance))
            whose = "a follower" if node in followers else "the leader"
            repaired, waited = took[-1]
            print(
                f"round {number + 1}: {ROTTEN} batches of {whose} repaired in {repaired:.1f} s, "
                f"readers waited {waited:.1f} s at most",
                flush=True,
            )
        for publisher in publishers:
            publisher.finish()
        assert_kept(publishers, cluster.read_all(STREAM))
        copies = {
            node: b"".join(stored_bytes(path) for path in files_of(cluster, node)) for node in NODES
        }
        assert len(set(copies.values())) == 1, {node: len(copies[node]) for node in NODES}
        cluster.assert_sound()
    repaired, waited = (max(seconds) for seconds in zip(*took, strict=True))
    print(
        f"{len(took)} rounds: repaired within {repaired:.1f} s, readers waited {waited:.1f} s at "
        f"most; load {os.getloadavg()[0]:.1f}"
    )
