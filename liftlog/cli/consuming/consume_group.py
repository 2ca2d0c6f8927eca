"""The work of `liftlog consume --group`: prints the records of a member's slots, or runs a command
for each, then commits them.

SIGINT and SIGTERM end the worker between two batches or commands, so that exactly the printed
records are committed. A second signal kills it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any

from liftlog.cli.consuming.consume_exec import Exec, Handle, Stopping
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.problems import note, warn
from liftlog.cli.lib.record_lines import Write
from liftlog.cli.lib.text import plural, printable
from liftlog.errors import ConnectionLost, CorruptRange, GroupFenced

if TYPE_CHECKING:
    from liftlog.client import OnReset, Reset, SyncClient, SyncGroupConsumer
    from liftlog.client.reading.read_options import Start

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_STOPPING = b"Stopping: what is done is being committed. Ctrl-C again ends at once.\n"


@dataclass(slots=True)
class Membership:
    """One run of `consume --group`. `start` applies to a group that does not exist yet. With
    `command`, the command runs for each record, and nothing is printed."""

    group: str
    stream: str
    member: str | None
    session: float
    start: Start
    limit: int | None
    on_reset: OnReset
    skip_damaged: bool
    command: Exec | None = None
    slots: int = 0
    damaged: bool = False
    stopped_by: list[int] = field(default_factory=list)

    def run(self, client: SyncClient, write: Write) -> ExitCode:
        """Print until a signal arrives, or the limit is reached."""
        options: dict[str, Any] = {"on_reset": self.on_reset, "reset_callback": self._tell_reset}
        if self.skip_damaged:
            options["on_corrupt"] = self._skip
        records = client.group(
            self.group,
            self.stream,
            member=self.member,
            session=self.session,
            start=self.start,
            on_assigned=self._gain,
            on_revoked=self._lose,
            **options,
        )
        try:
            with self._handling(client) as handle, self._signals_stop(records), records:
                if handle is None:
                    self._print(records, write)
                else:
                    self._work(records, handle)
                if signal.SIGINT in self.stopped_by:
                    records.leave()
        except GroupFenced as error:
            error.hint = "another process runs with this --member: give each a name of its own"
            raise
        except CorruptRange as error:
            error.hint = "use --skip-damaged; the group then continues after the damage"
            raise
        except ConnectionLost as error:
            error.hint = "run it again: the group continues after the last commit"
            raise
        if self.stopped_by:
            return ExitCode.INTERRUPTED
        return ExitCode.DAMAGED if self.damaged else ExitCode.OK

    def _print(self, records: SyncGroupConsumer, write: Write) -> None:
        if self.limit is None:
            for batch in records.batches():
                write(batch)
            return
        for count, record in enumerate(records, 1):
            write([record])
            if count == self.limit:
                records.commit()  # the last record counts, too
                return

    def _handling(self, client: SyncClient) -> AbstractContextManager[Handle | None]:
        if self.command is None:
            return nullcontext()
        return self.command.handling(client, lambda: bool(self.stopped_by))

    def _work(self, records: SyncGroupConsumer, handle: Handle) -> None:
        with suppress(Stopping):
            for count, record in enumerate(records, 1):
                handle(records, record)
                if count == self.limit:
                    records.commit()
                    return

    @contextmanager
    def _signals_stop(self, records: SyncGroupConsumer) -> Iterator[None]:
        def stop(number: int, frame: FrameType | None) -> None:
            for one in _SIGNALS:
                signal.signal(one, signal.SIG_DFL)  # an exception would also commit
            self.stopped_by.append(number)
            records.stop()
            os.write(2, _STOPPING)  # works even during another write to stderr

        before = {number: signal.signal(number, stop) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    # --- messages on stderr ---

    def _gain(self, slots: Sequence[int]) -> None:
        self.slots += len(slots)
        self._tell_share(f", {len(slots)} more" if self.slots > len(slots) else "")

    def _lose(self, slots: Sequence[int]) -> None:
        self.slots -= len(slots)
        self._tell_share(f", {len(slots)} less")

    def _tell_share(self, change: str) -> None:
        who = self.member or "this member"
        note(f"{printable(who)} has {plural(self.slots, 'slot')} now{change}")

    def _skip(self, error: CorruptRange) -> None:
        warn(error.message)
        self.damaged = True

    def _tell_reset(self, reset: Reset) -> None:
        warn(f"{reset.error.message}; continuing at offset {reset.to_offset}")
