"""Streams of every kind on a cluster, all that publishers do, and the check of all promises.

A load lives through many rounds of faults. After each round every copy is read from where the last
check ended, now and then from its begin, and compared with the books (`support.history`). Beside
that copies are read all the time, and so are streams by an application with checkpoints: what they
got once must stay (`support.replicated_readers`). Campaigns have a consumer group as well
(`support.replicated_group`).
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any

import nats
from nats.errors import Error as NatsError
from support.cluster import NODES, PATIENCE, Cluster
from support.history import History
from support.ingesting import numbered, until
from support.nats_server import NatsServer
from support.raw_nats import RawMessage, RawNats, header_block, hpub_frame, pub_frame
from support.replicated_group import GroupReader
from support.replicated_readers import CampaignReader, CheckpointReader, CopyReader, stored_of
from support.rounds import is_torture

_VOLLEY_SECONDS = 0.15
_EASY_VOLLEY_SECONDS = 1.0
_REPEAT_SECONDS = 1.0
_KEYS = 40
_SMALL: dict[str, Any] = {"replicas": 3, "min_isr": 2, "segment": {"max_bytes": "32KiB"}}
STREAMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "leader": {"ack_policy": "leader", "rebatch": {"min_age": "0s"}},
    "keyed": {"compaction": {"min_dirty_ratio": 0.2, "tombstone_retention": "1s"}},
    "short": {"retention": {"max_bytes": "128KiB"}, "rebatch": {"min_age": "0s"}},
    "large": {"retention": {"max_bytes": "2MiB"}},
}
"""Plain, acked by the leader alone, compacted by key, short-lived, of large messages."""
NODE_SETTINGS: dict[str, Any] = {
    "log": {"recovery_checkpoint_interval": "100ms", "retention_interval": "100ms"},
    "cleaner": {"interval": "100ms"},
    "nats": {"reconnect_wait": "50ms"},
}
_LARGE_BYTES = 900_000

Event = tuple[str, int, float, Any]
"""What happened to the message of this number, when, and more: "sent" (key, deletes), "acked"
(offset, promised) or "refused" (code)."""


class LoadPublisher(threading.Thread):
    """Publishes numbered messages to one subject, some at a time, and notes what happens to them.

    `message_of` makes subject, headers and value of a number. With an id in its headers, a message
    is repeated until it is acked. With "silent" among the headers it asks for no ack. When its
    server is gone it goes on at the next one of `servers`.
    """

    def __init__(
        self,
        servers: Sequence[NatsServer],
        subject: str,
        message_of: Callable[[str, int], tuple[str, dict[str, str], bytes]],
        *,
        in_flight: int = 8,
    ) -> None:
        super().__init__(name=f"publisher-{subject}", daemon=True)
        self.subject = subject
        self.events: deque[Event] = deque()
        self.acked = 0
        self.host = ""
        """Of the server that it is connected to."""
        self.easy = False
        """Some messages a second instead of some dozens."""
        self.error: BaseException | None = None
        self._servers = deque(servers)
        self._message_of = message_of
        self._in_flight = in_flight
        self._stop_asked = threading.Event()
        self._next = 0
        self._waiting: dict[int, float] = {}
        self._repeated: dict[int, float] = {}

    def finish(self) -> None:
        self._stop_asked.set()
        self.join(PATIENCE)
        assert not self.is_alive(), f"{self.name} does not end"
        if self.error is not None:
            raise self.error

    def run(self) -> None:
        try:
            while not self._stop_asked.is_set():
                server = self._servers[0]
                self.host = server.host
                try:
                    with RawNats(server.port, host=server.host, timeout=2.0) as client:
                        self._publish_through(client)
                except OSError:  # it is gone; what was under way stays without an answer
                    self._servers.rotate(-1)
                    self._stop_asked.wait(0.05)
        except (AssertionError, ValueError) as error:
            self.error = error

    def _publish_through(self, client: RawNats) -> None:
        inbox = client.new_reply().rpartition(b".")[0]
        while not self._stop_asked.is_set():
            client.send(b"".join(self._frames(inbox)))
            pause = _EASY_VOLLEY_SECONDS if self.easy else _VOLLEY_SECONDS
            self._take_answers(client, time.monotonic() + pause)
        deadline = time.monotonic() + 10.0
        while (self._waiting or self._repeated) and time.monotonic() < deadline:
            client.send(b"".join(self._late(inbox)))
            self._take_answers(client, time.monotonic() + 0.3)
            self._waiting.clear()

    def _frames(self, inbox: bytes) -> list[bytes]:
        frames = self._late(inbox)
        now = time.monotonic()
        self._waiting = {n: at for n, at in self._waiting.items() if now - at < _REPEAT_SECONDS}
        while len(self._waiting) + len(self._repeated) < self._in_flight:
            number, self._next = self._next, self._next + 1
            frames.append(self._frame(number, inbox))
        return frames

    def _late(self, inbox: bytes) -> list[bytes]:
        now = time.monotonic()
        late = [n for n, at in self._repeated.items() if now - at > _REPEAT_SECONDS]
        return [self._frame(number, inbox) for number in late]

    def _frame(self, number: int, inbox: bytes) -> bytes:
        subject, headers, value = self._message_of(self.subject, number)
        now = time.monotonic()
        deletes = "Liftlog-Tombstone" in headers
        self.events.append(("sent", number, now, (headers.get("Liftlog-Key"), deletes)))
        if "silent" in headers:
            return pub_frame(subject, value)
        (self._repeated if "Nats-Msg-Id" in headers else self._waiting)[number] = now
        reply = inbox + b".%d" % number
        if not headers:
            return pub_frame(subject, value, reply=reply)
        return hpub_frame(subject, header_block(headers), value, reply=reply)

    def _take_answers(self, client: RawNats, until_time: float) -> None:
        with suppress(TimeoutError):
            while (left := until_time - time.monotonic()) > 0:
                self._take(client.next_message(left))

    def _take(self, message: RawMessage) -> None:
        number, now = int(message.subject.rpartition(b".")[2]), time.monotonic()
        is_repeated = number in self._repeated
        self._waiting.pop(number, None)
        if not message.payload:
            return  # NATS has no subscriber for it
        answer = json.loads(message.payload)
        if "error" not in answer:
            self._repeated.pop(number, None)
            self.acked += 1
            promised = answer.get("policy") != "leader"
            self.events.append(("acked", number, now, (answer["seq"], promised)))
        elif not is_repeated:  # an attempt without an answer may have been stored
            self.events.append(("refused", number, now, answer["error"]["err_code"]))


class LibraryPublisher(LoadPublisher):
    """An application with nats-py: `js.publish`, and again with the same id until it is acked."""

    def run(self) -> None:
        try:
            asyncio.run(self._publish())
        except Exception as error:  # told by `finish`
            self.error = error

    async def _publish(self) -> None:
        urls = [server.url for server in self._servers]

        async def ignore(_: Exception) -> None:
            """Servers are down now and then; nats-py would print a traceback each time."""

        client = await nats.connect(
            urls, max_reconnect_attempts=-1, reconnect_time_wait=0.1, error_cb=ignore
        )
        stream = client.jetstream(timeout=1.0)
        while not self._stop_asked.is_set():
            number, self._next = self._next, self._next + 1
            subject, headers, value = self._message_of(self.subject, number)
            self.events.append(("sent", number, time.monotonic(), (None, False)))
            while not self._stop_asked.is_set():
                self.host = getattr(client.connected_url, "hostname", None) or ""
                try:
                    ack = await stream.publish(subject, value, headers=headers)
                except (NatsError, TimeoutError):
                    await asyncio.sleep(0.05)
                    continue
                self.acked += 1
                self.events.append(("acked", number, time.monotonic(), (ack.seq, True)))
                break
            await asyncio.sleep(0.5 if self.easy else 0.02)
        await client.close()


def mixed(subject: str, number: int) -> tuple[str, dict[str, str], bytes]:
    """With headers and without, repeated and not, empty, and without asking for an ack."""
    value = numbered(number, 100)
    kind = number % 8
    if kind == 0:
        return subject, {"Number": str(number), "X-Colour": "grün"}, value
    if kind == 1:  # nothing but the subject tells them apart
        return f"{subject}.{number}", {}, b""
    if kind == 2:
        return subject, {"silent": ""}, value
    if kind in (3, 4, 5):
        return subject, {"Nats-Msg-Id": f"{subject}-{number}"}, value
    return subject, {}, value


def keyed(subject: str, number: int) -> tuple[str, dict[str, str], bytes]:
    """Of some keys; each eighth message deletes its key."""
    headers = {"Liftlog-Key": f"{subject}/{number * 7 % _KEYS}", "Number": str(number)}
    if number % 3 == 0:
        headers["Nats-Msg-Id"] = f"{subject}-{number}"
    if number % 8 == 0:
        return subject, {**headers, "Liftlog-Tombstone": "true"}, b""
    return subject, headers, numbered(number, 100)


def plain(subject: str, number: int) -> tuple[str, dict[str, str], bytes]:
    return subject, {}, numbered(number, 200)


def identified(subject: str, number: int) -> tuple[str, dict[str, str], bytes]:
    return subject, {"Nats-Msg-Id": f"{subject}-{number}"}, numbered(number, 60)


def large(subject: str, number: int) -> tuple[str, dict[str, str], bytes]:
    """Hardly one in four has any size, or the test would measure the disk."""
    return subject, {}, numbered(number, _LARGE_BYTES if number % 4 == 0 else 2000)


class Load:
    """Publishers and books of some streams on one cluster, on subjects below `prefix`. They are
    spread over the `servers`."""

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
        # A reader that takes long may miss a tombstone of what it has read before: not this one.
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
        """So many more on each of these streams, or of all."""
        wanted = {name: self.acked(name) + more for name in streams or self.settings}
        for name, count in wanted.items():
            count = count if name != "large" else min(count, self.acked(name) + 1)
            until(lambda n=name, c=count: self.acked(n) >= c, PATIENCE, f"{more} acks of {name}")

    def wait_each_acked(self, without: Collection[str] = ()) -> None:
        """One more of each publisher, but for those at the servers with these addresses."""
        chosen = [
            one
            for publishers in self.publishers.values()
            for one in publishers
            if one.host not in without
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
        """Every copy, from where the last check ended or from its begin.

        Publishers take it easy meanwhile: what they publish is read in later rounds, and on a busy
        machine a check would never come to an end of it.
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
        """When no one publishes any more: all copies end at one place, and are equal."""
        for reader in self._readers:
            reader.finish()
        for stream in self.settings:
            cluster.wait_settled(stream)
            self._check(cluster, stream, True, is_last=True, lenient=refused_may_be_stored)
        cluster.assert_sound()

    def _check(
        self, cluster: Cluster, stream: str, whole: bool, *, is_last: bool, lenient: bool
    ) -> None:
        history, end = self.histories[stream], self._ends[stream]
        history.refused_may_be_stored |= lenient
        # What is compacted, or deleted from the front, is small, and changes everywhere.
        start = end if stream in ("plain", "leader") and not whole else 1
        readings = [
            cluster.read(stream, node, start, is_last=is_last, convert=stored_of) for node in NODES
        ]
        for reader in self._readers:
            readings += reader.take(stream)
        # Read before the publishers are asked: what is read was sent.
        for publisher in self.publishers[stream]:
            _tell(publisher, history)
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
            LibraryPublisher(at(2), f"{subject}2", identified),
        ]
    return [
        LoadPublisher(at(0), f"{subject}0", mixed),
        LoadPublisher(at(1), f"{subject}1", plain),
    ]


def _tell(publisher: LoadPublisher, history: History) -> None:
    for _ in range(len(publisher.events)):
        what, number, at, more = publisher.events.popleft()
        message = (publisher.subject, number)
        if what == "sent":
            key, deletes = more
            encoded = None if key is None else key.encode()
            history.sent(message, at, encoded, deletes=deletes)
        elif what == "acked":
            offset, promised = more
            history.acked(message, offset, at, promised=promised)
        else:
            history.refused(message, more)
