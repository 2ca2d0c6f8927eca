"""A nats-server with JetStream, and the daemon with its own nats-server. Both get the same
requests, and the processor time of the process that serves consumers is measured."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from support.clients.raw_nats import RawNats, pub_frame
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

PATIENCE_SECONDS = 120.0
PAYLOAD = b"x" * 128
_PIECE = 1000
_AT_ONCE = 32
_numbers = itertools.count(1)


class Side(NamedTuple):
    """`server` is the process that serves consumers: the daemon, or the nats-server."""

    name: str
    server: Daemon | NatsServer
    port: int

    @property
    def pid(self) -> int:
        pid = self.server.pid
        assert pid is not None
        return pid

    def connect(self) -> RawNats:
        return RawNats(self.port, timeout=PATIENCE_SECONDS)

    def api(self, raw: RawNats, subject: str, body: object = None) -> Any:
        """Send a request. Raises RuntimeError with the error of the answer."""
        payload = b"" if body is None else json.dumps(body)
        answer = raw.request(f"$JS.API.{subject}", payload).json()
        if "error" in answer:
            raise RuntimeError(f"{self.name}, {subject}: {answer['error']}")
        return answer

    @contextmanager
    def stream(self, count: int = 0, **more: object) -> Iterator[str]:
        """Yield a stream with this number of messages, which records `<name>.>`. It is deleted at
        the end."""
        name = f"s{next(_numbers)}"
        config = {"name": name, "subjects": [f"{name}.>"], "storage": "file", **more}
        with self.connect() as raw:
            self.api(raw, f"STREAM.CREATE.{name}", config)
        try:
            with self.connect() as raw:
                self.fill(raw, name, count)
            yield name
        finally:
            with self.connect() as raw:  # NATS ends a connection that is idle for minutes
                self.api(raw, f"STREAM.DELETE.{name}")

    def fill(self, raw: RawNats, stream: str, count: int) -> None:
        frame = pub_frame(f"{stream}.a", PAYLOAD)
        before = self.stored(raw, stream)
        for sent in range(0, count, _PIECE):
            raw.send(frame * min(count - sent, _PIECE))
            raw.ping()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (found := self.stored(raw, stream) - before) < count:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name}: {found} of {count} messages were stored")
            time.sleep(0.02)

    def stored(self, raw: RawNats, stream: str) -> int:
        return int(self.api(raw, f"STREAM.INFO.{stream}")["state"]["messages"])

    def consumer(self, raw: RawNats, stream: str, name: str = "work", **config: object) -> str:
        """Create a durable pull consumer with explicit acks."""
        body = _consumer(stream, name, config)
        self.api(raw, f"CONSUMER.DURABLE.CREATE.{stream}.{name}", body)
        return name

    def consumers(
        self, raw: RawNats, stream: str, wanted: Sequence[tuple[str, Mapping[str, object]]]
    ) -> None:
        """Create durable pull consumers of these names and configurations, several at a time."""
        for at in range(0, len(wanted), _AT_ONCE):
            some = wanted[at : at + _AT_ONCE]
            for name, config in some:
                body = json.dumps(_consumer(stream, name, config))
                subject = f"$JS.API.CONSUMER.DURABLE.CREATE.{stream}.{name}"
                raw.pub(subject, body, reply=raw.new_reply())
            for _ in some:
                answer = raw.next_message().json()
                if "error" in answer:
                    raise RuntimeError(f"{self.name}, {stream}: {answer['error']}")

    def unacked(self, raw: RawNats, stream: str, name: str) -> int:
        """Return the number of messages that are pending or not yet delivered."""
        info = self.api(raw, f"CONSUMER.INFO.{stream}.{name}")
        return int(info["num_ack_pending"]) + int(info["num_pending"])

    def wait_done(self, raw: RawNats, stream: str, name: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while left := self.unacked(raw, stream, name):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name}: {left} messages are not acked")
            time.sleep(0.02)

    def processor_seconds(self) -> float:
        """Return the processor time that all threads of the server have used so far, including
        ended threads."""
        return processor_seconds(self.pid)


def _consumer(stream: str, name: str, config: Mapping[str, object]) -> dict[str, object]:
    wanted = {"durable_name": name, "ack_policy": "explicit", "max_ack_pending": 65536}
    return {"stream_name": stream, "config": {**wanted, **config}}


def processor_seconds(pid: int) -> float:
    clock = (~pid << 3) | 2  # as clock_getcpuclockid of Linux
    return time.clock_gettime(clock)


@contextmanager
def sides(directory: Path) -> Iterator[tuple[Side, Side]]:
    """JetStream, and liftlog."""
    leaf = {"listen": "127.0.0.1:-1"}
    with (
        NatsServer(directory / "theirs", jetstream=True) as theirs,
        NatsServer(directory / "ours", leafnodes=leaf) as ours,
    ):
        listener = re.search(r"for leafnode connections on (\S+)", ours.log)
        assert listener is not None, ours.log
        settings = {"nats": {"jetstream_api": True, "leafnode": listener[1]}}
        # An installed daemon has compiled modules. Compiling them again at each start would take
        # several seconds of processor time.
        compiled = {
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(directory / "compiled"),
        }
        with Daemon(
            ours.url, settings, directory=directory / "liftlog", environ=compiled
        ) as daemon:
            wait_ready(daemon)
            yield Side("JetStream", theirs, theirs.port), Side("liftlog", daemon, ours.port)


def wait_ready(daemon: Daemon, since: int = 0) -> None:
    """Return when the daemon answers clients of JetStream. `since`: length of its log before."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        log = daemon.log[since:]
        if "jetstream-api-answers" in log and "nats-leaf-connected" in log:
            return
        if time.monotonic() > deadline:
            raise RuntimeError("the daemon does not answer clients of JetStream")
        time.sleep(0.02)
