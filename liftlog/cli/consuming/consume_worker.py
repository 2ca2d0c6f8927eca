"""The work of `liftlog consume --worker`: prints the messages of a consumer with acks, or runs a
command for each, and acks them.

SIGINT and SIGTERM end the worker between two batches or commands. Printed or processed messages are
acked, and the other messages are returned. A second signal kills it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING

from liftlog.cli.consuming.consume_exec import Bury, CommandFailed, Exec
from liftlog.cli.consuming.consumer import created_for
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.problems import warn
from liftlog.cli.lib.record_lines import Write
from liftlog.errors import LiftlogError

if TYPE_CHECKING:
    from liftlog.client import ConsumerInfo, SyncClient, SyncWorker, WorkMessage
    from liftlog.client.reading.read_options import Start

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_STOPPING = b"Stopping: unacked messages are returned. Ctrl-C again ends at once.\n"
_BATCH = 500
_NS = 1_000_000_000
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 30.0
_SHARE_OF_ACK_WAIT = 3
"""Number of times per ack wait that the message of a running command is reported as in progress."""


class _Stopped(BaseException):
    """Raised if a signal arrives while the worker waits for messages."""


@dataclass(slots=True)
class Work:
    """One run of `consume --worker`. `start` applies to a consumer that does not exist yet."""

    consumer: str
    stream: str
    start: Start
    limit: int | None
    command: Exec | None = None
    stopped_by: list[int] = field(default_factory=list)
    is_waiting: bool = False

    def run(self, client: SyncClient, write: Write) -> ExitCode:
        """Work until a signal arrives, or the limit is reached."""
        info = created_for(client, self.stream, self.consumer, self.start)
        is_single = self.command is not None
        batch = 1 if is_single else min(self.limit or _BATCH, _BATCH)
        worker = client.worker(
            self.stream,
            self.consumer,
            batch=batch,
            prefetch=not is_single and self.limit is None,
            create=False,
        )
        with self._signals_stop(), worker:
            if self.command is None:
                self._print(worker, write)
            else:
                with self.command.publishing(client) as bury:
                    self._execute(worker, self.command, bury, _interval(info))
        return ExitCode.INTERRUPTED if self.stopped_by else ExitCode.OK

    def _print(self, worker: SyncWorker, write: Write) -> None:
        left = self.limit
        for messages in self._batches(worker):
            some = messages if left is None else messages[:left]
            write([one.record for one in some])
            worker.ack(some)
            if left is not None:
                left -= len(some)
                if not left:
                    return

    def _execute(
        self, worker: SyncWorker, command: Exec, bury: Bury | None, interval: float
    ) -> None:
        done = 0
        for messages in self._batches(worker):
            for message in messages:
                self._process(worker, command, bury, interval, message)
                done += 1
                if done == self.limit:
                    return

    def _process(
        self,
        worker: SyncWorker,
        command: Exec,
        bury: Bury | None,
        interval: float,
        message: WorkMessage,
    ) -> None:
        def is_at_work() -> None:
            with suppress(LiftlogError):  # the next one follows
                worker.in_progress(message)

        try:
            command.run(self.stream, message.record, is_at_work, interval)
        except CommandFailed as error:
            attempts = message.deliveries
            if bury is not None and attempts > command.retries:
                bury(self.consumer, self.stream, message.record, error, attempts)
                worker.term(message, reason=str(error))
                return
            pause = min(_FIRST_PAUSE_SECONDS * 2.0 ** min(attempts - 1, 10), _LONGEST_PAUSE_SECONDS)
            warn(
                f"the command failed for offset {message.offset} of {self.stream}, delivery "
                f"{attempts}: {error}; the message is delivered again in {pause:g} s"
            )
            worker.nak(message, delay=pause)
        else:
            worker.ack(message)

    def _batches(self, worker: SyncWorker) -> Iterator[list[WorkMessage]]:
        """Return the messages of each batch until a signal arrives."""
        while not self.stopped_by:
            try:
                self.is_waiting = True
                batch = next(worker)
                self.is_waiting = False
            except _Stopped:
                return
            finally:
                self.is_waiting = False
            yield batch.messages()

    @contextmanager
    def _signals_stop(self) -> Iterator[None]:
        def stop(number: int, frame: FrameType | None) -> None:
            for one in _SIGNALS:
                signal.signal(one, signal.SIG_DFL)
            self.stopped_by.append(number)
            os.write(2, _STOPPING)  # works even during another write to stderr
            if self.is_waiting:
                raise _Stopped

        before = {number: signal.signal(number, stop) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _interval(info: ConsumerInfo) -> float:
    """Return the pause, in seconds, between two reports that a message is being processed."""
    waits: list[int] = info.config.get("backoff") or [info.config.get("ack_wait", 30 * _NS)]
    return max(min(waits) / _NS / _SHARE_OF_ACK_WAIT, 0.05)
