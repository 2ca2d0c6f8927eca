"""The work of `liftlog consume --group GROUP --exec COMMAND`: runs a command for each record. If
the command fails repeatedly for a record, the record becomes a dead letter."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.nats_server import nats_credentials, nats_servers
from liftlog.cli.lib.output import to_json
from liftlog.cli.lib.problems import Problem, warn
from liftlog.errors import NatsUnavailable
from liftlog.records.json_form import record_object

if TYPE_CHECKING:
    from liftlog.client import Record, SyncClient, SyncGroupConsumer
    from liftlog.client.dead_letters import SyncDeadLetters
    from liftlog.client.publisher import PublishFailed
    from liftlog.client.sync_publisher import SyncPublisher

_TRY_LATER = 75  # EX_TEMPFAIL of sysexits.h
_NOT_OF_THE_RECORD = {
    _TRY_LATER: "it asks to be run again later",
    126: "the shell cannot run it",
    127: "the shell does not find it",
}
_CONNECT_SECONDS = 10.0
_MOST_KEY_BYTES = 64 * 1024  # half of Linux's limit for one variable

Handle = Callable[["SyncGroupConsumer", "Record"], object]
Bury = Callable[[str, str, "Record", Exception, int], object]
"""Publishes a dead letter: consumer, stream, record, the error, the number of attempts."""


class CommandFailed(Exception):
    """Raised if the command reports that it cannot process this record."""


class Stopping(Exception):
    """Raised if the command failed and is not retried, because the worker is stopping."""


@dataclass(frozen=True, slots=True)
class Exec:
    """Runs the command for the records. `dead_letter` is the subject for dead letters; without one,
    the worker ends at the first record whose command fails. With `as_json`, the command reads the
    whole record as a JSON object instead of the value alone."""

    command: str
    as_json: bool
    dead_letter: str | None
    retries: int
    nats_url: str | None
    creds: Path | None

    @contextmanager
    def handling(self, client: SyncClient, is_stopping: Callable[[], bool]) -> Iterator[Handle]:
        """Return the function to call with each record, one at a time."""
        if self.dead_letter is None:
            yield self._run_once
            return
        from liftlog.client.publisher import PublishFailed

        with self._letters(client) as letters:

            def handle(records: SyncGroupConsumer, record: Record) -> None:
                failed: CommandFailed | None = None

                def work(one: Record) -> None:
                    nonlocal failed
                    if failed is not None and is_stopping():
                        raise Stopping from failed
                    try:
                        self.run(records.stream, one)
                    except CommandFailed as error:
                        failed = error
                        raise

                try:
                    letters.process(records, record, work)
                except PublishFailed as error:
                    raise _not_published(self.dead_letter, record, error) from error

            yield handle

    @contextmanager
    def publishing(self, client: SyncClient) -> Iterator[Bury | None]:
        """Return the function that publishes a dead letter; None if there is no subject for dead
        letters."""
        if self.dead_letter is None:
            yield None
            return
        from liftlog.client.publisher import PublishFailed

        with self._letters(client) as letters:

            def bury(
                name: str, stream: str, record: Record, error: Exception, attempts: int
            ) -> None:
                try:
                    letters.publish(name, stream, record, error, attempts)
                except PublishFailed as failure:
                    raise _not_published(self.dead_letter, record, failure) from failure

            yield bury

    @contextmanager
    def _letters(self, client: SyncClient) -> Iterator[SyncDeadLetters]:
        from liftlog.client.dead_letters import SyncDeadLetters

        assert self.dead_letter is not None
        expect = [one.name for one in client.streams_for(self.dead_letter)]
        if not expect:
            warn(
                f"no stream that this login may read records {self.dead_letter}: a dead letter "
                f"would end this worker. `liftlog stream create dead -s '{self.dead_letter}'` "
                "creates one"
            )
        with self._publisher() as publisher:
            yield SyncDeadLetters(
                publisher,
                self.dead_letter,
                expect=expect,
                retries=self.retries,
                errors=(CommandFailed,),
            )

    def _publisher(self) -> SyncPublisher:
        from liftlog.cli.pub_run import not_connected
        from liftlog.client.sync_publisher import SyncPublisher

        servers, creds = nats_servers(self.nats_url), nats_credentials(self.creds)
        given = {} if creds is None else {"user_credentials": str(creds)}
        try:
            return SyncPublisher(
                servers, connect_timeout=_CONNECT_SECONDS, name="liftlog consume", **given
            ).open()
        except NatsUnavailable as error:
            raise not_connected(servers, error) from error

    def _run_once(self, records: SyncGroupConsumer, record: Record) -> None:
        try:
            self.run(records.stream, record)
        except CommandFailed as error:
            raise Problem(
                f"the command failed for offset {record.offset} of {records.stream}: {error}",
                ExitCode.FAILED,
                hint="run the worker again: the group continues with this record. With "
                "--dead-letter SUBJECT the worker publishes such records there, and continues",
            ) from None

    def run(
        self,
        stream: str,
        record: Record,
        is_at_work: Callable[[], None] = lambda: None,
        interval: float | None = None,
    ) -> None:
        """Run the command for one record; call `is_at_work` each `interval` seconds meanwhile.
        Raises CommandFailed; raises Problem for a failure that the record did not cause."""
        if self.as_json:
            content = to_json(record_object(record)).encode() + b"\n"
        else:
            content = record.value or b""
        process = subprocess.Popen(
            ["/bin/sh", "-c", self.command],
            stdin=subprocess.PIPE,
            env=environment(stream, record),
            process_group=0,  # Ctrl-C does not reach the command
        )
        sent: bytes | None = content
        try:
            while True:
                try:
                    process.communicate(sent, timeout=interval)
                    break
                except subprocess.TimeoutExpired:
                    sent = None  # it remembers the rest
                    is_at_work()
        except BaseException:
            process.kill()
            raise
        status = process.returncode
        if status in _NOT_OF_THE_RECORD:
            raise Problem(
                f"the command ended with status {status} at offset {record.offset} of {stream}: "
                f"{_NOT_OF_THE_RECORD[status]}",
                ExitCode.TRY_AGAIN if status == _TRY_LATER else ExitCode.FAILED,
                hint="remove the cause, and run the worker again: it processes this record again",
            )
        if status:
            raise CommandFailed(_said(status))


def _not_published(subject: str | None, record: Record, error: PublishFailed) -> Problem:
    return Problem(
        f"offset {record.offset} is no dead letter of {subject}: {error.message}",
        ExitCode.NOT_ACKED,
        hint=f"{error.hint or 'remove the cause'}; then run the worker again: "
        "it processes this record again",
    )


def _said(status: int) -> str:
    if status > 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def environment(stream: str, record: Record) -> dict[str, str]:
    """Return the command's environment. A key that an environment variable cannot hold is left out.
    A RECORD_KEY that this process has inherited is removed."""
    inherited = {name: value for name, value in os.environ.items() if name != "RECORD_KEY"}
    found = inherited | {
        "RECORD_STREAM": stream,
        "RECORD_OFFSET": str(record.offset),
        "RECORD_SUBJECT": record.subject,
        "RECORD_TOMBSTONE": "true" if record.value is None else "",
    }
    key = record.key
    if key is not None and b"\0" not in key and len(key) <= _MOST_KEY_BYTES:
        found["RECORD_KEY"] = os.fsdecode(key)
    return found
