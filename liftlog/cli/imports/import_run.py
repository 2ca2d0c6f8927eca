"""The work of `liftlog import`: stores each message of a source once, in order.

Every copied record contains the name of its source and its number there (SOURCE, SEQUENCE). A run
continues after the highest number of its source in the stream. A message is stored only at the
offset after the previous copy (Publisher, order `sequence`). The record at that previous offset
must also have the message id of the previous copy, because another publisher may have stored a
message there. So no message that was in flight at the end of a run is missing or stored twice.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acl.subjects import matches_any, overlap_any
from liftlog.cli.imports.import_sources import Item, JetStream, Lines, Parquet
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.problems import Problem
from liftlog.cli.lib.progress import count_progress
from liftlog.cli.pub_run import load_nats
from liftlog.client import Filter
from liftlog.client.publisher import Publisher, PublishFailed
from liftlog.errors import InvalidArgument

if TYPE_CHECKING:
    from liftlog.client import StreamInfo, SyncClient

SOURCE, SEQUENCE = "Copied-From", "Copied-Sequence"
_NOT_COPIED = (b"nats-", b"liftlog-", b"copied-")
"""Headers that are not copied. Headers that took effect at the source would take effect again in
the stream. Headers that an earlier copy has added would name the wrong source."""
_UNDER_WAY = 512
_SOURCE_NAME = re.compile(r"[!-~]{1,128}", re.ASCII)

Source = JetStream | Lines | Parquet


@dataclass(slots=True)
class Import:
    """One run of an import. `copied` is the number of the last message that is known to be
    stored."""

    source: Source
    name: str
    stream: str
    subjects: list[str]
    last_offset: int
    copied: int
    count: int = 0
    before: str = ""
    """Message id of the last copy that this run sent."""

    @classmethod
    def of(cls, client: SyncClient, stream: str, source: Source, name: str) -> Import:
        """Create an import that continues after the last run. Raises StreamNotFound,
        InvalidArgument."""
        if not _SOURCE_NAME.fullmatch(name):
            raise InvalidArgument(
                f"{name!r} cannot name a source",
                hint="give it a name of 1 to 128 ASCII characters without blanks: --source NAME",
            )
        info = client.describe_stream(stream)
        return cls(
            source,
            name,
            stream,
            info.recorded_subjects,
            info.log_end_offset - 1,
            _last_copied(client, info, name),
        )

    def run(self, servers: list[str], creds: Path | None, *, use_envelope: bool) -> None:
        """Copy the remaining messages. Raises LiftlogError; after an error, `copied` and `count`
        show how many messages were copied."""
        load_nats(servers)
        try:
            asyncio.run(self._run(servers, creds, use_envelope=use_envelope))
        except PublishFailed as error:
            raise Problem(error.message, ExitCode.NOT_ACKED, hint=self._way_on) from error

    @property
    def _way_on(self) -> str:
        return (
            f"{self.count:,} copied; run the command again once the cause is removed: it continues "
            f"after number {self.copied}, and stores nothing twice"
        )

    async def _run(self, servers: list[str], creds: Path | None, *, use_envelope: bool) -> None:
        if isinstance(self.source, JetStream) and self.source.servers == servers:
            await _check_is_retired(self.source, self.subjects)
        publisher = Publisher(
            servers,
            expect=[self.stream],
            order="sequence",
            last_sequence=self.last_offset,
            max_in_flight=_UNDER_WAY,
            use_envelope=use_envelope,
            name="liftlog import",
            user_credentials=None if creds is None else str(creds),
        )
        async with publisher:
            with count_progress(f"{self.name} -> {self.stream}") as tell:
                await self._copy(publisher, tell)

    async def _copy(self, publisher: Publisher, tell: Callable[[int, int | None], None]) -> None:
        under_way: deque[tuple[int, asyncio.Future[Any]]] = deque()
        known: set[str] = set()
        try:
            async for items in self.source.batches(self.copied):
                for item in items:
                    self._check_subject(item, known)
                    under_way.append(
                        (item.sequence, await publisher.submit(**self._arguments(item)))
                    )
                    if len(under_way) > _UNDER_WAY:
                        await self._settle(under_way)
                tell(self.count, self.source.total)
            while under_way:
                await self._settle(under_way)
                tell(self.count, self.source.total)
        finally:
            # Messages that are already stored are counted, although the run ends here.
            for sequence, future in under_way:
                if future.done() and not future.cancelled() and future.exception() is None:
                    self.copied, self.count = sequence, self.count + 1
                else:
                    future.cancel()

    async def _settle(self, under_way: deque[tuple[int, asyncio.Future[Any]]]) -> None:
        """Wait for the oldest message in flight."""
        sequence, future = under_way[0]
        await asyncio.shield(future)
        under_way.popleft()
        self.copied, self.count = sequence, self.count + 1

    def _check_subject(self, item: Item, known: set[str]) -> None:
        if item.subject in known:
            return
        if not matches_any(self.subjects, item.subject):
            raise InvalidArgument(
                f"message {item.sequence} has the subject {item.subject!r}, which {self.stream} "
                f"({', '.join(self.subjects)}) does not record",
                hint=f"after number {self.copied} nothing was stored",
            )
        known.add(item.subject)

    def _arguments(self, item: Item) -> dict[str, Any]:
        """Return the arguments of `Publisher.submit`."""
        lines = [line for line in item.headers if not line[0].lower().startswith(_NOT_COPIED)]
        own = {SOURCE: self.name, SEQUENCE: str(item.sequence)}
        if self.before:
            own["Nats-Expected-Last-Msg-Id"] = self.before
        self.before = f"{self.name}:{item.sequence}"
        if item.message_id:
            own["Copied-Id"] = item.message_id
        if item.time:
            own["Copied-Time"] = item.time
        lines += [(name.encode(), text.encode()) for name, text in own.items()]
        return {
            "subject": item.subject,
            "value": item.value,
            "key": item.key,
            "headers": lines,
            "message_id": self.before,
        }


def _last_copied(client: SyncClient, info: StreamInfo, name: str) -> int:
    """Return the highest number of this source in the stream; 0 if there is none. The last record
    nearly always has it; otherwise the daemon searches the stream for the number."""
    if info.high_watermark == info.log_start_offset:
        return 0
    ours = Filter(header=f"{SOURCE}={name}")
    for start in (info.high_watermark - 1, "earliest"):
        found = [
            int(record.headers[SEQUENCE])
            for record in client.read(
                info.name, start=start, until="end", filter=ours, columns=["headers"]
            )
            if record.headers.get(SEQUENCE, "").isdecimal()
        ]
        if found:
            return max(found)
    return 0


async def _check_is_retired(source: JetStream, subjects: list[str]) -> None:
    """Raise Problem if JetStream would record the copies again: the import would then copy its own
    copies without end."""
    recorded = [one for one in await source.subjects() if overlap_any((one,), subjects)]
    if recorded:
        raise Problem(
            f"JetStream's stream {source.stream} records {', '.join(recorded)}, and so the copies",
            ExitCode.CONFLICT,
            hint="first make the stream record other subjects: "
            f"nats stream edit {source.stream} --subjects retired.{source.stream}",
        )
