"""Three real daemons on one machine that replicate to each other, beside real nats-servers."""

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
"""The clusters of this process, whose logs are shown when a test fails."""


class Cluster:
    """Use as a context manager. Each node has a directory, an address that stays, and the same
    `streams`; the metadata are files that all of them share, or a bucket in JetStream if `cluster`
    has `store: nats`.

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
        """`nats` is the URL of a server, or of each of some; `cluster` are more settings of that
        section; `disks` are places for the data of some nodes, by their names, and `store` is one
        for the metadata; `advertised` are addresses at which the others reach a node, if not at its
        own; `network` has a machine for each node; `clocks` are those of some nodes, if not of this
        machine; `wrapper` and `boot_id` as for `Daemon`."""
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
                "ready_after": 0,  # tests start nodes while others are down
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
        """The last lines that each node has logged."""
        nodes = self.nodes.items()
        return "".join(
            f"--- node {name}, {one.log_path}\n{one.log_tail(60)}\n" for name, one in nodes
        )

    def _make_bucket(self) -> None:
        """As `liftlog cluster init` does."""
        written = self.nodes["a"].settings
        if written["cluster"]["store"] == "nats":
            settings = NatsSettings(**written["nats"])
            asyncio.run(make_store(settings, written["cluster"]["name"], 3))

    def end(self) -> None:
        self.kill()
        self._stack.close()

    # --- life ---------------------------------------------------------------------

    def start(self, *names: str) -> None:
        """Those that do not run, of all or of these, at the same time; each is ready on return."""
        chosen = [self.nodes[name] for name in names or NODES if not self.nodes[name].running]
        for daemon in chosen:
            daemon.spawn()
        for daemon in chosen:
            daemon.wait_ready()

    def stop(self, *names: str) -> None:
        """SIGTERM, one node after the other."""
        for name in names or NODES:
            if self.nodes[name].running:
                self.resume(name)
                self.nodes[name].stop()

    def kill(self, *names: str) -> None:
        """SIGKILL to all of them or to these, as near to at once as signals are."""
        chosen = [self.nodes[name] for name in names or NODES if self.nodes[name].running]
        for daemon in chosen:
            os.kill(daemon.pid, signal.SIGKILL)
        for daemon in chosen:
            daemon.wait(PATIENCE)
        self._paused.difference_update(names or NODES)

    def pause(self, *names: str) -> None:
        """SIGSTOP: connections stay up, and nothing moves. Not while it holds the lock of metadata
        in files, without which the others could change nothing: a bucket has no such lock."""
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
        """The node does not run; it comes back with an empty disk."""
        shutil.rmtree(self.nodes[name].data_dir)

    def stored(self) -> bytes:
        """The metadata as they are, if they are in files."""
        return (self.store / "records").read_bytes()

    def set_store_back(self, old: bytes) -> None:
        """Under the lock of the nodes: what one of them is about to write would undo it."""
        copy = self.store / "records.old"
        copy.write_bytes(old)
        with self._store_lock():
            copy.replace(self.store / "records")

    def put_logs_aside(self, directory: Path, name: str) -> None:
        """What nodes logged without power or a disk is for who looks for a fault; `assert_sound`
        does not count it."""
        for node, daemon in self.nodes.items():
            if daemon.log_path.exists():
                daemon.log_path.rename(directory / f"{node}.{name}.log")

    # --- what it says -----------------------------------------------------------

    def up(self) -> list[str]:
        return [n for n in NODES if self.nodes[n].running and n not in self._paused]

    def status(self, through: str | None = None) -> tuple[dict[str, Any], int]:
        """What `liftlog cluster status --output json` prints, and its exit code."""
        done = self.command("cluster", "status", "--output", "json", through=through)
        assert done.returncode in (0, 1), done.stderr
        return json.loads(done.stdout), done.returncode

    def command(self, *words: str, through: str | None = None) -> subprocess.CompletedProcess[str]:
        """Runs `liftlog` with these words, against the node `through`, or any."""
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
        """The stream as this node knows it, with the offsets of its own copy; waits until the node
        knows it."""
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
        """Waits until there is one that is up."""
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
        """Until exactly these are in sync, with a leader among them."""
        wanted = set(nodes)
        deadline = time.monotonic() + timeout
        while True:
            found = self.stream(stream)
            if set(found.isr) == wanted and found.leader in wanted:
                return
            assert time.monotonic() < deadline, f"in sync on {sorted(wanted)}? {found}"
            time.sleep(0.02)

    def wait_recorded(self, stream: str) -> None:
        """Until its leader has subscribed: before, NATS answers that no one hears the subject."""

        def is_attached() -> bool:
            with connect_sync(self.nodes[self.leader(stream)].pull_address) as client:
                try:
                    return client.describe_stream(stream).state == "attached"
                except StreamNotFound:  # the leader has not heard of it yet
                    return False

        until(is_attached, PATIENCE, f"{stream} is recorded")

    def wait_all_in_sync(self) -> None:
        """Until each stream has all its replicas in sync, and a leader among them that is up, as
        each node knows it: one that hung knows what was before."""
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
        """Until these replicas end at the same offset and all below is committed; returns it."""
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
        """The copy of one node, from `start` or what it has kept up to its high watermark, past
        what it says to be damaged."""
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
                    # A copy that is opened again may not know this end for a moment, and waits.
                    found = client.read(stream, start=place, until=end, replica=node)
                    records.extend(map(convert, found))  # up to the damage
                    break
                except CorruptRange as damage:
                    damaged.append((damage.first_offset, damage.next_offset))
                    place = damage.next_offset
                except StreamNotFound:  # it opens its copy again, in another role
                    assert time.monotonic() < deadline, f"{node} has no copy of {stream}"
                    place = max(place, records[-1].offset + 1 if records else start)
                    time.sleep(0.05)
                except OffsetOutOfRange as behind:
                    # Retention overtook the reader: what is left begins here.
                    start = place = int(behind.details["log_start_offset"])
                    records.clear()
        end = max(end, records[-1].offset + 1 if records else start)
        return Reading(node, start, end, records, is_last, damaged)

    def read_all(self, stream: str, nodes: Iterable[str] = NODES) -> list[Reading]:
        """The whole copies of these nodes, once they agree on where it ends."""
        nodes = list(nodes)
        self.wait_settled(stream, nodes)
        return [self.read(stream, name, is_last=True) for name in nodes]

    def assert_sound(self) -> None:
        """No node has logged an error that it did not expect."""
        for name, daemon in self.nodes.items():
            assert "Traceback" not in daemon.log, f"node {name}:\n{daemon.log}"
            assert "was never retrieved" not in daemon.log, f"node {name}:\n{daemon.log}"


def as_stored(record: Record) -> Stored:
    message = (record.subject, number_of(record.value))
    content = (record.timestamp_ns, record.value, tuple(record.headers.items()))
    return Stored(record.offset, message, content, record.key)


class TimedPublisher(AckedPublisher):
    """Notes when it sent what, when the acks came, and which of them only the leader stood for."""

    EASE_SECONDS: ClassVar = 0.005  # a volley is one message

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
        """What has been sent until now; answers that come meanwhile may be in it or not."""
        nacked, acked_at = self.nacked.copy(), self.acked_at.copy()
        for number, at in self.sent_at.copy().items():
            history.sent((self.subject, number), at)
        for number, at in acked_at.items():
            promised = number not in self.by_leader
            history.acked((self.subject, number), self.acked[number], at, promised=promised)
        for number, code in nacked.items():
            history.refused((self.subject, number), code)

    def longest_wait(self, since: float = 0.0) -> float:
        """Most seconds between two acks in a row, of those that came after `since`."""
        times = sorted(at for at in self.acked_at.copy().values() if at >= since)
        return max((later - one for one, later in itertools.pairwise(times)), default=0.0)


class RetryingPublisher(TimedPublisher):
    """Publishes each message, with its `Nats-Msg-Id`, until it is acked: as clients are told to.

    `rate` bounds the messages per second, so that what waits after a pause stays little.
    """

    RETRY_SECONDS = 0.25
    USUAL_RATE = 500.0 if is_torture() else 200.0

    def __init__(self, port: int, subject: str, *, rate: float = USUAL_RATE, **more: Any) -> None:
        super().__init__(port, subject, **more)
        self._rate = rate
        self._is_given_up = False

    def give_up(self) -> None:
        """Publish no more and wait for no ack, if it has not finished: a test has failed."""
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
            # What could not be sent in a pause is not caught up with.
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
        """An empty answer says that no one subscribes, an error that it is refused for now."""
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
    """All promises to these publishers are kept in these readings."""
    readings = list(readings)  # read before the publishers are asked: what is read was sent
    history = History(**more)
    for publisher in publishers:
        publisher.tell(history)
    for reading in readings:
        history.read(reading)
    found = history.check()
    assert not found, "\n".join(map(str, found))
    return history
