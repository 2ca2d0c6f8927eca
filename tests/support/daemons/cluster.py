"""Three real daemons on one machine that replicate to each other, with real nats-servers."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakSet

from support.clients.command_line import COMMAND
from support.clients.ingesting import AckedPublisher, number_of, until
from support.clients.raw_nats import RawMessage, RawNats, header_block, hpub_frame
from support.daemons.daemon import Daemon
from support.daemons.ports import lasting_ports
from support.repository import REPOSITORY
from support.rounds import is_torture
from support.worlds.history import History, Reading, Stored

from liftlog.client import connect_sync
from liftlog.errors import CorruptRange, OffsetOutOfRange, StreamNotFound
from liftlog.records.decode import Record
from liftlog.server.metadata.kv_store import make_store
from liftlog.server.metadata.records_file import LOCK_SUFFIX, locked_file
from liftlog.settings import NatsSettings

if TYPE_CHECKING:
    from support.clients.replicated_publishers import LoadPublisher
    from support.daemons.networks import Network
    from support.daemons.shifted_clock import ShiftedClock

    from liftlog.client import ClusterStream

NODES = ("a", "b", "c")
NAME = "tests"
PATIENCE = 60.0

RUNNING: WeakSet[Cluster] = WeakSet()
"""The clusters of this process. Their logs are shown when a test fails."""


class Cluster:
    """Use as a context manager. Each node has a directory, a fixed address, and the same `streams`.
    The metadata are in files that all nodes share, or in a bucket of JetStream if `cluster` has
    `store: nats`.

        with Cluster(server.url, {"orders": {"subject": "orders.>", "replicas": 3}}) as cluster:
            cluster.kill("b", "c")
    """

    def __init__(
        self,
        nats: str | Sequence[str],
        streams: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        settings: Mapping[str, Any] | None = None,
        cluster: Mapping[str, Any] | None = None,
        directory: Path | None = None,
        disks: Mapping[str, Path] | None = None,
        store: Path | None = None,
        advertised: Mapping[str, str] | None = None,
        network: Network | None = None,
        clocks: Mapping[str, ShiftedClock] | None = None,
        wrapper: Sequence[str] = (),
        boot_id: Path | None = None,
    ) -> None:
        """`nats` is the URL of one server, or a list of URLs. `cluster` has further settings of
        this section. `disks` are the places of some nodes' data, by node name, and `store` is the
        place of the metadata. `advertised` are addresses at which other nodes reach a node, if they
        differ from its own. `network` has a machine for each node. `clocks` are the clocks of some
        nodes, if they differ from the clock of this machine. `wrapper` and `boot_id` are as for
        `Daemon`."""
        RUNNING.add(self)
        self._stack = ExitStack()
        if directory is None:
            made = tempfile.TemporaryDirectory(prefix="liftlog-cluster-")
            directory = Path(self._stack.enter_context(made))
        self.directory = directory.absolute()
        self.store = (store or directory / "meta").absolute()
        self.nodes: dict[str, Daemon] = {}
        self._paused: set[str] = set()
        servers = [nats] if isinstance(nats, str) else list(nats)
        for name, port in zip(NODES, lasting_ports(len(NODES)), strict=True):
            host = network.host(name) if network else "127.0.0.1"
            address = f"tcp://{host}:{port}"
            member = {
                "name": NAME,
                "node": name,
                "advertise": (advertised or {}).get(name, address),
                "store": self.store.as_uri(),
                "ready_after": 0,  # tests start some nodes while others are down
            }
            self.nodes[name] = Daemon(
                None,
                {
                    **(settings or {}),
                    "nats": {"servers": servers, **(settings or {}).get("nats", {})},
                    "pull": {"listen": [address]},
                    "http": {"listen": f"{host}:0", **(settings or {}).get("http", {})},
                    "allow_anonymous": network is not None,
                    "cluster": {**member, **(cluster or {})},
                    "streams": {key: dict(value) for key, value in (streams or {}).items()},
                },
                directory=directory / name,
                wrapper=wrapper,
                boot_id=boot_id,
                network=network.place(name) if network else None,
                clock=clocks[name].path if clocks and name in clocks else None,
            )
        for name, disk in (disks or {}).items():
            daemon = self.nodes[name]
            daemon.data_dir = disk / name
            daemon.settings["data_dir"] = str(daemon.data_dir)

    def __enter__(self) -> Cluster:
        try:
            self._make_bucket()
            self.start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.stop()
            else:
                sys.stderr.write(self.log_tails())
        finally:
            self.end()

    def log_tails(self) -> str:
        """Return the last lines of each node's log."""
        nodes = self.nodes.items()
        return "".join(
            f"--- node {name}, {one.log_path}\n{one.log_tail(60)}\n" for name, one in nodes
        )

    def _make_bucket(self) -> None:
        """Create the bucket as `liftlog cluster init` does."""
        written = self.nodes["a"].settings
        if written["cluster"]["store"] == "nats":
            settings = NatsSettings(**written["nats"])
            asyncio.run(make_store(settings, written["cluster"]["name"], 3))

    def end(self) -> None:
        self.kill()
        self._stack.close()

    # --- life ---------------------------------------------------------------------

    def start(self, *names: str) -> None:
        """Start the given nodes (default: all) that do not run, at the same time. Each node is
        ready on return."""
        chosen = [self.nodes[name] for name in names or NODES if not self.nodes[name].running]
        for daemon in chosen:
            daemon.spawn()
        for daemon in chosen:
            daemon.wait_ready()

    def stop(self, *names: str) -> None:
        """Send SIGTERM to one node after the other."""
        for name in names or NODES:
            if self.nodes[name].running:
                self.resume(name)
                self.nodes[name].stop()

    def kill(self, *names: str) -> None:
        """Send SIGKILL to the given nodes (default: all), as close together as possible."""
        chosen = [self.nodes[name] for name in names or NODES if self.nodes[name].running]
        for daemon in chosen:
            os.kill(daemon.pid, signal.SIGKILL)
        for daemon in chosen:
            daemon.wait(PATIENCE)
        self._paused.difference_update(names or NODES)

    def pause(self, *names: str) -> None:
        """Send SIGSTOP. Connections stay open, and the process does nothing. If the metadata are in
        files, a node is not stopped while it holds their lock, because no other node could then
        change anything. A bucket has no such lock."""
        for name in names or NODES:
            with self._store_lock():
                os.kill(self.nodes[name].pid, signal.SIGSTOP)
            self._paused.add(name)

    def _store_lock(self) -> AbstractContextManager[None]:
        lock = self.store / f"records{LOCK_SUFFIX}"
        return locked_file(lock) if lock.exists() else nullcontext()

    def resume(self, *names: str) -> None:
        for name in names or NODES:
            if name in self._paused:
                os.kill(self.nodes[name].pid, signal.SIGCONT)
                self._paused.discard(name)

    def wipe(self, name: str) -> None:
        """Empty the disk of a node that does not run."""
        shutil.rmtree(self.nodes[name].data_dir)

    def stored(self) -> bytes:
        """Return the metadata if they are in files."""
        return (self.store / "records").read_bytes()

    def set_store_back(self, old: bytes) -> None:
        """Replace the metadata by an older copy, under the lock of the nodes, because a node that
        is writing would undo the change."""
        copy = self.store / "records.old"
        copy.write_bytes(old)
        with self._store_lock():
            copy.replace(self.store / "records")

    def put_logs_aside(self, directory: Path, name: str) -> None:
        """Rename the logs of nodes that had no power or no disk. They are only for debugging, and
        `assert_sound` does not examine them."""
        for node, daemon in self.nodes.items():
            if daemon.log_path.exists():
                daemon.log_path.rename(directory / f"{node}.{name}.log")

    # --- what it says -----------------------------------------------------------

    def up(self) -> list[str]:
        return [n for n in NODES if self.nodes[n].running and n not in self._paused]

    def status(self, through: str | None = None) -> tuple[dict[str, Any], int]:
        """Return the output and the exit code of `liftlog cluster status --output json`."""
        done = self.command("cluster", "status", "--output", "json", through=through)
        assert done.returncode in (0, 1), done.stderr
        return json.loads(done.stdout), done.returncode

    def command(self, *words: str, through: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a `liftlog` command against the node `through`, or against any node."""
        address = self.nodes[through or self.up()[0]].pull_address
        return subprocess.run(
            [*COMMAND, *words],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "LIFTLOG_SERVER": address},
            capture_output=True,
            timeout=PATIENCE,
            check=False,
            text=True,
        )

    def stream(self, name: str, through: str | None = None) -> ClusterStream:
        """Return the state of the stream according to this node, with the offsets of its own copy.
        Waits until the node has received the stream."""
        node = self.nodes[through or self.up()[0]]
        deadline = time.monotonic() + PATIENCE
        while True:
            with connect_sync(node.pull_address) as client:
                for found in client.cluster().replicated:
                    if found.name == name:
                        return found
            assert time.monotonic() < deadline, f"there is no stream {name}"
            time.sleep(0.05)

    def leader(self, stream: str) -> str:
        """Wait until the stream has a running leader, and return its name."""
        deadline = time.monotonic() + PATIENCE
        while (leader := self.stream(stream).leader) not in self.up():
            assert time.monotonic() < deadline, f"{stream} has no leader: {self.stream(stream)}"
            time.sleep(0.05)
        assert leader is not None
        return leader

    def followers(self, stream: str) -> list[str]:
        leader = self.leader(stream)
        return [name for name in self.stream(stream).replicas if name != leader]

    def wait_isr(
        self, stream: str, nodes: Iterable[str] = NODES, timeout: float = PATIENCE
    ) -> None:
        """Wait until exactly these nodes are in sync and one of them leads."""
        wanted = set(nodes)
        deadline = time.monotonic() + timeout
        while True:
            found = self.stream(stream)
            if set(found.isr) == wanted and found.leader in wanted:
                return
            assert time.monotonic() < deadline, f"in sync on {sorted(wanted)}? {found}"
            time.sleep(0.02)

    def wait_recorded(self, stream: str) -> None:
        """Wait until the leader has subscribed. Before that, NATS reports that the subject has no
        subscriber."""

        def is_attached() -> bool:
            with connect_sync(self.nodes[self.leader(stream)].pull_address) as client:
                try:
                    return client.describe_stream(stream).state == "attached"
                except StreamNotFound:  # the leader has not received it yet
                    return False

        until(is_attached, PATIENCE, f"{stream} is recorded")

    def wait_all_in_sync(self) -> None:
        """Wait until, according to each node, every stream has all replicas in sync and a running
        leader. A node that was stopped may have an old state."""
        for name in self.up():
            self._wait_in_sync_by(name)

    def _wait_in_sync_by(self, name: str) -> None:
        up = self.up()
        deadline = time.monotonic() + PATIENCE
        with connect_sync(self.nodes[name].pull_address) as client:
            while True:
                found = client.cluster().replicated
                lacking = [
                    one
                    for one in found
                    if set(one.isr) != set(one.replicas) or one.leader not in up
                ]
                if found and not lacking:
                    return
                assert time.monotonic() < deadline, f"all in sync? {lacking}"
                time.sleep(0.02)

    def wait_settled(self, stream: str, nodes: Iterable[str] = NODES) -> int:
        """Wait until these replicas end at the same offset and all their records are committed.
        Returns this offset."""
        nodes = list(nodes)
        deadline = time.monotonic() + PATIENCE
        while True:
            found = [self.stream(stream, through=name) for name in nodes]
            ends = {end for one in found for end in (one.high_watermark, one.log_end_offset)}
            if len(ends) == 1 and (end := ends.pop()) is not None:
                return end
            assert time.monotonic() < deadline, f"one end and one high watermark? {found}"
            time.sleep(0.02)

    # --- what it holds --------------------------------------------------------------

    def read(
        self,
        stream: str,
        node: str,
        start: int = 1,
        *,
        is_last: bool = False,
        convert: Callable[[Record], Stored] | None = None,
    ) -> Reading:
        """Read the copy of one node, from `start` or its first offset up to its high watermark.
        Continues after damage that the node reports."""
        convert = convert or as_stored
        end = self.stream(stream, through=node).high_watermark
        assert end is not None, f"{node} has no copy of {stream}"
        records: list[Stored] = []
        damaged: list[tuple[int, int]] = []
        deadline = time.monotonic() + PATIENCE
        with connect_sync(self.nodes[node].pull_address) as client:
            place = start
            while True:
                try:
                    # After a copy was opened again, its end may be unknown for a moment. The read
                    # then waits.
                    found = client.read(stream, start=place, until=end, replica=node)
                    records.extend(map(convert, found))  # up to the damage
                    break
                except CorruptRange as damage:
                    damaged.append((damage.first_offset, damage.next_offset))
                    place = damage.next_offset
                except StreamNotFound:  # the node opens its copy again, in another role
                    assert time.monotonic() < deadline, f"{node} has no copy of {stream}"
                    place = max(place, records[-1].offset + 1 if records else start)
                    time.sleep(0.05)
                except OffsetOutOfRange as behind:
                    # Retention removed records before the reader reached them. The remaining
                    # records begin here.
                    start = place = int(behind.details["log_start_offset"])
                    records.clear()
        end = max(end, records[-1].offset + 1 if records else start)
        return Reading(node, start, end, records, is_last, damaged)

    def read_all(self, stream: str, nodes: Iterable[str] = NODES) -> list[Reading]:
        """Wait until the copies of these nodes end at the same offset, and read them completely."""
        nodes = list(nodes)
        self.wait_settled(stream, nodes)
        return [self.read(stream, name, is_last=True) for name in nodes]

    def assert_sound(self) -> None:
        """Check that no node has logged an unexpected error."""
        for name, daemon in self.nodes.items():
            assert "Traceback" not in daemon.log, f"node {name}:\n{daemon.log}"
            assert "was never retrieved" not in daemon.log, f"node {name}:\n{daemon.log}"


def as_stored(record: Record) -> Stored:
    message = (record.subject, number_of(record.value))
    content = (record.timestamp_ns, record.value, tuple(record.headers.items()))
    return Stored(record.offset, message, content, record.key)


class TimedPublisher(AckedPublisher):
    """Records the time of each message and of its ack, and which acks only the leader has given."""

    EASE_SECONDS: ClassVar = 0.005  # one message per volley

    def __init__(self, port: int, subject: str, **more: Any) -> None:
        super().__init__(port, subject, **more)
        self.sent_at: dict[int, float] = {}
        self.acked_at: dict[int, float] = {}
        self.by_leader: set[int] = set()

    def frame(self, number: int, reply: bytes) -> bytes:
        self.sent_at[number] = time.monotonic()
        return super().frame(number, reply)

    def take(self, message: RawMessage, waiting: set[int]) -> None:
        super().take(message, waiting)
        number = int(message.subject.rpartition(b".")[2])
        if number in self.acked:
            self.acked_at[number] = time.monotonic()
            if b'"policy":"leader"' in message.payload.replace(b" ", b""):
                self.by_leader.add(number)

    def tell(self, history: History) -> None:
        """Add all messages that were sent until now to the history. It may or may not contain
        answers that arrive during the call."""
        nacked, acked_at = self.nacked.copy(), self.acked_at.copy()
        for number, at in self.sent_at.copy().items():
            history.sent((self.subject, number), at)
        for number, at in acked_at.items():
            promised = number not in self.by_leader
            history.acked((self.subject, number), self.acked[number], at, promised=promised)
        for number, code in nacked.items():
            history.refused((self.subject, number), code)

    def longest_wait(self, since: float = 0.0) -> float:
        """Return the longest time between two consecutive acks after `since`, in seconds."""
        times = sorted(at for at in self.acked_at.copy().values() if at >= since)
        return max((later - one for one, later in itertools.pairwise(times)), default=0.0)


class RetryingPublisher(TimedPublisher):
    """Publishes each message with its `Nats-Msg-Id` until it is acked, as the documentation
    recommends.

    `rate` limits the messages per second, so that few messages wait after a pause.
    """

    RETRY_SECONDS = 0.25
    USUAL_RATE = 500.0 if is_torture() else 200.0

    def __init__(self, port: int, subject: str, *, rate: float = USUAL_RATE, **more: Any) -> None:
        super().__init__(port, subject, **more)
        self._rate = rate
        self._is_given_up = False

    def give_up(self) -> None:
        """Stop publishing without waiting for acks, unless the publisher has finished, because a
        test has failed."""
        self._is_given_up = True
        self._stop_asked.set()
        self.join(20)
        assert not self.is_alive()

    def _publish(self, client: RawNats) -> None:
        inbox = client.new_reply().rpartition(b".")[0]
        waiting: set[int] = set()
        tried_at: dict[int, float] = {}
        allowed, looked_at = 1.0, time.monotonic()
        while not self._stop_asked.is_set() or (waiting and not self._is_given_up):
            now = time.monotonic()
            due = [one for one in waiting if now - tried_at[one] >= self.RETRY_SECONDS]
            # Messages that could not be sent during a pause are not sent later.
            allowed = min(allowed + self._rate * (now - looked_at), float(self._in_flight))
            looked_at = now
            may_send = min(self._in_flight - len(waiting), int(allowed))
            if not self._stop_asked.is_set() and may_send > 0:
                due += range(self.published, self.published + may_send)
                self.published += may_send
                allowed -= may_send
            for number in due:
                waiting.add(number)
                tried_at[number] = now
            client.send(b"".join(self.frame(one, inbox + b".%d" % one) for one in due))
            try:
                self.take(client.next_message(0.02), waiting)
                while client.messages:
                    self.take(client.next_message(), waiting)
            except TimeoutError:
                pass

    def frame(self, number: int, reply: bytes) -> bytes:
        if number not in self.sent_at:
            self.sent_at[number] = time.monotonic()
        block = header_block({"Nats-Msg-Id": f"{self.subject}/{number}"})
        return hpub_frame(self.subject, block, self._value_of(number), reply=reply)

    def take(self, message: RawMessage, waiting: set[int]) -> None:
        """Handle an answer. An empty answer means that the subject has no subscriber, and an error
        means that the message is refused for now."""
        answer = json.loads(message.payload) if message.payload else {}
        if not answer or "error" in answer:
            self.unheard += 1
            return
        number = int(message.subject.rpartition(b".")[2])
        offset = self.acked.setdefault(number, answer["seq"])
        assert offset == answer["seq"], f"{number} was acked at {offset}, now at {answer['seq']}"
        self.acked_at.setdefault(number, time.monotonic())
        waiting.discard(number)


def assert_kept(
    publishers: Iterable[TimedPublisher | LoadPublisher], readings: Iterable[Reading], **more: bool
) -> History:
    """Check that all promises to these publishers are kept in these readings."""
    readings = list(readings)  # read first, so that all read messages were sent
    history = History(**more)
    for publisher in publishers:
        publisher.tell(history)
    for reading in readings:
        history.read(reading)
    found = history.check()
    assert not found, "\n".join(map(str, found))
    return history
