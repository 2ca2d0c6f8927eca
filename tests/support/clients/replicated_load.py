"""Publishes to streams of every kind on a cluster, with publishers of every kind, and checks all
promises.

A load lasts many rounds of faults. After each round, every copy is read from the end of the last
check, or sometimes from its beginning, and compared with the recorded results
(`support.worlds.history`). In addition, `replicated_readers` reads copies all the time, and also
streams through an application with checkpoints: records that they have read must not change.
Campaigns also run a consumer group (`replicated_group`), and publishers with NATS clients for other
languages (`client_publishers`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from support.clients.client_publishers import ClientPublisher, client_publishers
from support.clients.ingesting import until
from support.clients.replicated_group import GroupReader
from support.clients.replicated_publishers import LoadPublisher, keyed, large, mixed, plain
from support.clients.replicated_readers import (
    CampaignReader,
    CheckpointReader,
    CopyReader,
    stored_of,
)
from support.daemons.cluster import NODES, PATIENCE, Cluster
from support.daemons.nats_server import NatsServer
from support.rounds import is_torture
from support.worlds.history import History

_SMALL: dict[str, Any] = {"replicas": 3, "min_isr": 2, "segment": {"max_bytes": "32KiB"}}
STREAMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "leader": {"ack_policy": "leader", "rebatch": {"min_age": "0s"}},
    "keyed": {"compaction": {"min_dirty_ratio": 0.2, "tombstone_retention": "1s"}},
    "short": {
        "queue_group": "workers",
        "retention": {"max_bytes": "128KiB", "max_age": "40m"},
        "rebatch": {"min_age": "0s"},
    },
    "large": {"retention": {"max_bytes": "2MiB"}},
}
"""The streams: plain, acked by the leader alone, compacted by key, with short retention in a queue
group, and with large messages."""
NODE_SETTINGS: dict[str, Any] = {
    "log": {"recovery_checkpoint_interval": "100ms", "retention_interval": "100ms"},
    "cleaner": {"interval": "100ms"},
    "nats": {"reconnect_wait": "50ms"},
}


class Load:
    """The publishers and recorded results of some streams on one cluster, on subjects below
    `prefix`. The publishers are distributed over the `servers`."""

    def __init__(
        self,
        servers: NatsServer | Sequence[NatsServer],
        prefix: str,
        streams: Iterable[str] = STREAMS,
    ) -> None:
        servers = [servers] if isinstance(servers, NatsServer) else list(servers)
        subjects = {name: f"{prefix}.{name}" for name in streams}
        self.settings: dict[str, dict[str, Any]] = {
            name: {"subject": f"{subject}.>", **_SMALL, **STREAMS[name]}
            for name, subject in subjects.items()
        }
        self.histories = {name: History(is_compacted=name == "keyed") for name in subjects}
        made: dict[str, list[LoadPublisher]] = {
            name: _publishers(servers, name, f"{subject}.p") for name, subject in subjects.items()
        }
        self.publishers = made
        self._ends = dict.fromkeys(subjects, 1)
        self._readers: list[CampaignReader] = []
        self.checks = 0

    def start(self, cluster: Cluster) -> None:
        # A slow reader may miss a tombstone of a record that it has read before. So this reader
        # does not read the compacted stream.
        kept = [name for name in self.settings if name != "keyed"]
        self._readers = [CopyReader(cluster, self.settings), CheckpointReader(cluster, kept)]
        if is_torture():
            self._readers.append(GroupReader(cluster, "plain"))
        for reader in self._readers:
            reader.start()
        for publishers in self.publishers.values():
            for publisher in publishers:
                publisher.start()

    def finish(self) -> None:
        for publishers in self.publishers.values():
            for publisher in publishers:
                publisher.finish()

    def acked(self, stream: str) -> int:
        return sum(publisher.acked for publisher in self.publishers[stream])

    def wait_acked(self, more: int, streams: Iterable[str] = ()) -> None:
        """Wait for `more` acks on each of these streams, or on all streams."""
        wanted = {name: self.acked(name) + more for name in streams or self.settings}
        for name, count in wanted.items():
            count = count if name != "large" else min(count, self.acked(name) + 1)
            until(lambda n=name, c=count: self.acked(n) >= c, PATIENCE, f"{more} acks of {name}")

    def wait_each_acked(self, without: Collection[str] = ()) -> None:
        """Wait for one more ack of each publisher, except for publishers that are, or may be, at
        the servers with these addresses."""
        chosen = [
            one
            for publishers in self.publishers.values()
            for one in publishers
            if not without or (one.knows_host and one.host not in without)
        ]
        before = {one: one.acked for one in chosen}
        for one in chosen:
            until(
                lambda one=one: one.acked > before[one] or one.host in without,  # type: ignore[misc]
                PATIENCE,
                f"an ack of {one.name}, at {one.host}",
            )

    # --- the check ----------------------------------------------------------------

    def check(
        self, cluster: Cluster, *, whole: bool = False, refused_may_be_stored: bool = False
    ) -> None:
        """Check every copy, from the end of the last check or from its beginning.

        Meanwhile publishers send slowly. Later rounds have to read their messages, and on a busy
        machine a check would never end.
        """
        self.checks += 1
        self._ease(True)
        for stream in self.settings:
            self._check(cluster, stream, whole, is_last=False, lenient=refused_may_be_stored)
        self._ease(False)

    def _ease(self, easy: bool) -> None:
        for publishers in self.publishers.values():
            for publisher in publishers:
                publisher.easy = easy

    def check_all(self, cluster: Cluster, *, refused_may_be_stored: bool = False) -> None:
        """Check after all publishers have stopped: all copies end at one offset, and are equal."""
        for reader in self._readers:
            reader.finish()
        for stream in self.settings:
            cluster.wait_settled(stream)
            self._check(cluster, stream, True, is_last=True, lenient=refused_may_be_stored)
        cluster.assert_sound()
        for publishers in self.publishers.values():
            for publisher in publishers:
                if isinstance(publisher, ClientPublisher):
                    print(publisher.summary(), flush=True)

    def _check(
        self, cluster: Cluster, stream: str, whole: bool, *, is_last: bool, lenient: bool
    ) -> None:
        history, end = self.histories[stream], self._ends[stream]
        history.refused_may_be_stored |= lenient
        # Compacted streams, and streams with retention, are small and change everywhere.
        start = end if stream in ("plain", "leader") and not whole else 1
        readings = [
            cluster.read(stream, node, start, is_last=is_last, convert=stored_of) for node in NODES
        ]
        for reader in self._readers:
            readings += reader.take(stream)
        # Records are read before the publishers are asked, so all read messages were sent.
        for publisher in self.publishers[stream]:
            publisher.tell(history)
        for reading in readings:
            history.read(reading)
        found = history.check()
        assert not found, f"stream {stream}\n" + "\n".join(map(str, found))
        self._ends[stream] = min(reading.end for reading in readings[: len(NODES)])
        history.settle(self._ends[stream])


def _publishers(servers: Sequence[NatsServer], stream: str, subject: str) -> list[LoadPublisher]:
    def at(number: int) -> list[NatsServer]:
        number %= len(servers)
        return [*servers[number:], *servers[:number]]

    if stream == "keyed":
        return [LoadPublisher(at(number), f"{subject}{number}", keyed) for number in range(2)]
    if stream == "large":
        return [LoadPublisher(at(2), f"{subject}0", large, in_flight=1)]
    if stream == "plain":
        return [
            LoadPublisher(at(0), f"{subject}0", mixed),
            LoadPublisher(at(1), f"{subject}1", plain),
            *client_publishers(at(2), subject),
        ]
    return [
        LoadPublisher(at(0), f"{subject}0", mixed),
        LoadPublisher(at(1), f"{subject}1", plain),
    ]
