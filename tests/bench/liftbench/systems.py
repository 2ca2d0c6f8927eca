"""The measured systems and their ceiling: servers with the same few operations on streams."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support.clients.raw_nats import RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from liftlog.client import connect_sync

from .kinds import LIFTBRIDGE, PLAIN
from .processes import WorkerFailed, worker
from .publisher import PAYLOAD_BYTES

LIFTLOG, DEFAULT, ALWAYS = "liftlog", "jetstream-default", "jetstream-always"
CEILING = "ceiling"


class System(ABC):
    """A system. Its server runs inside of the `with` block. Each run has a new stream, which is
    removed afterwards."""

    name: str

    def __init__(self, directory: Path, *, wrapper: Sequence[str] = ()) -> None:
        self.directory = directory
        self.wrapper = wrapper
        self.nats: NatsServer
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def port(self) -> int:
        """Where publishers connect."""
        return self.nats.port

    @abstractmethod
    def _start(self) -> None: ...

    @abstractmethod
    def create(self, stream: str, subject: str, *, kind: str = PLAIN) -> None:
        """Create a stream. Returns when published messages of this kind are stored."""

    @abstractmethod
    def delete(self, stream: str) -> None: ...

    @abstractmethod
    def stored(self, stream: str) -> int:
        """Return the number of messages in the stream."""

    def fsyncs(self, stream: str) -> int | None:
        """Return the number of fsyncs of the stream so far; None if the system does not report
        it."""
        return None


class JetStream(System):
    """A file stream with one replica and otherwise default settings."""

    def __init__(self, directory: Path, *, always: bool, wrapper: Sequence[str] = ()) -> None:
        super().__init__(directory, wrapper=wrapper)
        self.always = always
        self.name = ALWAYS if always else DEFAULT

    def _start(self) -> None:
        self.nats = self._stack.enter_context(
            NatsServer(
                self.directory, jetstream=True, sync_always=self.always, wrapper=self.wrapper
            )
        )
        self._api = self._stack.enter_context(RawNats(self.nats.port, timeout=60))

    def _request(self, what: str, body: Any = None) -> Any:
        payload = b"" if body is None else json.dumps(body)
        answer = self._api.request(f"$JS.API.STREAM.{what}", payload).json()
        if "error" in answer:
            raise RuntimeError(f"{what}: {answer['error']}")
        return answer

    def create(self, stream: str, subject: str, *, kind: str = PLAIN) -> None:
        config = {"name": stream, "subjects": [subject], "storage": "file", "num_replicas": 1}
        self._request(f"CREATE.{stream}", config)

    def delete(self, stream: str) -> None:
        self._request(f"DELETE.{stream}")

    def stored(self, stream: str) -> int:
        return int(self._request(f"INFO.{stream}")["state"]["messages"])


class Liftlog(System):
    """The daemon with its default settings, and a core nats-server."""

    name = LIFTLOG

    def __init__(
        self,
        directory: Path,
        *,
        wrapper: Sequence[str] = (),
        streams: dict[str, dict[str, Any]] | None = None,
        acl: Path | None = None,
    ) -> None:
        super().__init__(directory, wrapper=wrapper)
        self._settings: dict[str, Any] = {"streams": streams or {}}
        if acl is not None:
            self._settings["acl"] = {"file": str(acl)}

    def _start(self) -> None:
        self.nats = self._stack.enter_context(NatsServer(self.directory / "nats"))
        self.daemon = self._stack.enter_context(
            Daemon(
                self.nats.url,
                self._settings,
                directory=self.directory / "liftlog",
                wrapper=self.wrapper,
            )
        )
        self._client = connect_sync(self.daemon.pull_address)
        self._stack.callback(self._client.close)

    def create(self, stream: str, subject: str, *, kind: str = PLAIN) -> None:
        self._client.create_stream(
            stream, subject=subject, durability="fsync", liftbridge=kind == LIFTBRIDGE
        )

    def delete(self, stream: str) -> None:
        self._client.delete_stream(stream)

    def stored(self, stream: str) -> int:
        info = self._client.describe_stream(stream)
        return info.high_watermark - info.log_start_offset

    def fsyncs(self, stream: str) -> int | None:
        return int(self.daemon.metric("liftlog_fsync_total", stream=stream))

    def segment_files(self, stream: str) -> list[tuple[str, int]]:
        """Return path and bytes of data of each segment. The file of the active segment is
        longer."""
        files = sorted((self.daemon.data_dir / "streams" / stream).glob("*.log"))
        left = self._client.describe_stream(stream).size_bytes
        found = []
        for file in files:
            size = min(left, file.stat().st_size)
            found.append((str(file), size))
            left -= size
        return found


class Ceiling(System):
    """A responder with a core nats-server. It stores nothing and acks at once."""

    name = CEILING

    def _start(self) -> None:
        self.nats = self._stack.enter_context(NatsServer(self.directory))
        self._run = self._stack.enter_context(ExitStack())

    def create(self, stream: str, subject: str, *, kind: str = PLAIN) -> None:
        spec = {"port": self.port, "subject": subject, "stream": stream}
        self.responder: subprocess.Popen[str] = self._run.enter_context(
            worker("responder", {**spec, "payload_bytes": PAYLOAD_BYTES})
        )
        assert self.responder.stdout is not None
        if not self.responder.stdout.readline():
            raise WorkerFailed(self.responder.communicate()[1])

    def delete(self, stream: str) -> None:
        gave_up = bool(self.responder.poll())
        errors = self.responder.communicate()[1] if gave_up else ""
        self._run.close()
        if gave_up:  # a better error than the missing acks of the publisher
            raise WorkerFailed(errors.strip())

    def stored(self, stream: str) -> int:
        """Return the number of acked messages, because nothing is stored. Ends the responder."""
        self.responder.send_signal(signal.SIGTERM)
        output, errors = self.responder.communicate()
        if self.responder.returncode:
            raise WorkerFailed(errors.strip())
        return int(json.loads(output)["acked"])


def wait_until_still(system: System, stream: str, *, quiet_seconds: float = 2.0) -> int:
    """Return the number of stored messages when it has not changed for a while, or after
    `quiet_seconds` x 30."""
    deadline = time.monotonic() + quiet_seconds * 30
    held, since = system.stored(stream), time.monotonic()
    while time.monotonic() - since < quiet_seconds and time.monotonic() < deadline:
        time.sleep(0.1)
        now = system.stored(stream)
        if now != held:
            held, since = now, time.monotonic()
    return held
