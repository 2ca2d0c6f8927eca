"""Messages of a partition of Liftbridge, for `liftlog import liftbridge`.

Over gRPC, with messages as in api.proto of https://github.com/liftbridge-io/liftbridge-api. Offsets
begin at 0 there, and the numbers of messages to copy at 1: a number is the offset plus one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from envelope import protobuf
from envelope.protobuf import BYTES, INT32, INT64, MAP, TEXT, Table
from liftlog.cli.imports.import_sources import Batches, Item
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.problems import Problem
from liftlog.errors import MissingDependency

_ASK: Table = {1: ("stream", TEXT), 2: ("partition", INT32)}
_ANSWER: Table = {1: ("partition", BYTES)}
_PARTITION: Table = {5: ("high_watermark", INT64)}
_SUBSCRIBE: Table = {
    1: ("stream", TEXT),
    2: ("partition", INT32),
    3: ("start", INT32),
    4: ("offset", INT64),
    8: ("stop", INT32),
    9: ("last", INT64),
}
_MESSAGE: Table = {
    1: ("offset", INT64),
    2: ("key", BYTES),
    3: ("value", BYTES),
    4: ("timestamp", INT64),
    7: ("subject", TEXT),
    9: ("headers", MAP),
}
_START_AT_OFFSET = _STOP_AT_OFFSET = 1
_ITS_OWN = ("subject", "reply")
"""Headers that the server adds to each message."""

_BATCH_BYTES = 4 << 20
_BATCH = 500
_ANSWER_SECONDS = 10
_MESSAGE_SECONDS = 30
_ANY_SIZE = [("grpc.max_receive_message_length", -1)]


@dataclass(slots=True)
class Liftbridge:
    """Messages of a partition, up to the high watermark that it has when the copy begins.
    `addresses` are the servers; the leader of the partition is among them."""

    addresses: Sequence[str]
    stream: str
    partition: int = 0
    certificates: Path | None = None
    total: int | None = field(default=None, init=False)

    async def batches(self, after: int) -> Batches:
        """Messages above the number `after`. Raises Problem, MissingDependency, OSError."""
        async with self._leader() as (channel, last):
            self.total = max(last - after, 0)
            if after >= last:
                return
            values = (
                self.stream,
                self.partition,
                _START_AT_OFFSET,
                after,
                _STOP_AT_OFFSET,
                last - 1,
            )
            answers = channel.unary_stream("/proto.API/Subscribe")(
                protobuf.encode(values, _SUBSCRIBE)
            )
            await self._next(answers)  # says only that the subscription began
            while after < last:
                items: list[Item] = []
                size = 0
                while after < last and len(items) < _BATCH and size < _BATCH_BYTES:
                    raw = await self._next(answers)
                    item = _item_of(raw)
                    if item.sequence <= after:
                        raise Problem(
                            f"offset {item.sequence - 1} came after offset {after - 1}",
                            ExitCode.DAMAGED,
                        )
                    items.append(item)
                    after, size = item.sequence, size + len(raw)
                yield items

    async def _next(self, answers: Any) -> bytes:
        import grpc

        async with asyncio.timeout(_MESSAGE_SECONDS):
            raw = await answers.read()
        if raw is grpc.aio.EOF:
            raise Problem(
                f"Liftbridge ended before the high watermark of {self.stream}",
                ExitCode.TRY_AGAIN,
                hint="run the command again: it continues where it stopped",
            )
        return bytes(raw)

    @asynccontextmanager
    async def _leader(self) -> AsyncIterator[tuple[Any, int]]:
        """A channel to the server that leads the partition, and the number of the last message."""
        try:
            import grpc
        except ModuleNotFoundError as error:
            raise MissingDependency(
                f"reading Liftbridge needs {error.name}, which is not installed",
                hint="pip install 'liftlog[liftbridge]'",
            ) from error
        asked = protobuf.encode((self.stream, self.partition), _ASK)
        told: list[str] = []
        for address in self.addresses:
            async with self._channel(grpc, address) as channel:
                try:
                    raw = await channel.unary_unary("/proto.API/FetchPartitionMetadata")(
                        asked, timeout=_ANSWER_SECONDS
                    )
                except grpc.aio.AioRpcError as error:
                    if error.code() == grpc.StatusCode.NOT_FOUND:
                        raise Problem(
                            f"Liftbridge has no stream {self.stream} with a partition "
                            f"{self.partition}",
                            ExitCode.NOT_FOUND,
                        ) from error
                    told.append(f"{address}: {error.details()}")
                    continue
                try:
                    yield channel, _last_number(raw)
                except grpc.aio.AioRpcError as error:
                    raise self._cannot_be_read(error.details()) from error
                except TimeoutError as error:
                    why = f"nothing came for {_MESSAGE_SECONDS} s"
                    raise self._cannot_be_read(why) from error
                return
        raise Problem(
            f"none of the servers leads partition {self.partition} of {self.stream}: "
            + "; ".join(told),
            ExitCode.CANNOT_CONNECT,
            hint="name all servers of the Liftbridge cluster: --source-servers HOST:9292,HOST:9292",
        )

    def _channel(self, grpc: Any, address: str) -> Any:
        if self.certificates is None:
            return grpc.aio.insecure_channel(address, _ANY_SIZE)
        trusted = grpc.ssl_channel_credentials(self.certificates.read_bytes())
        return grpc.aio.secure_channel(address, trusted, _ANY_SIZE)

    def _cannot_be_read(self, why: str | None) -> Problem:
        return Problem(
            f"stream {self.stream} of Liftbridge cannot be read: {why}",
            ExitCode.TRY_AGAIN,
            hint="run the command again: it continues where it stopped",
        )


def _last_number(raw: bytes) -> int:
    answer = protobuf.decode(raw, _ANSWER)
    found = None if answer is None else protobuf.decode(answer.get("partition", b""), _PARTITION)
    if found is None:
        raise Problem("Liftbridge sent what is not an answer", ExitCode.DAMAGED)
    return int(found.get("high_watermark", 0)) + 1


def _item_of(raw: bytes) -> Item:
    found = protobuf.decode(raw, _MESSAGE)
    if found is None:
        raise Problem("Liftbridge sent what is not a message", ExitCode.DAMAGED)
    number = found.get("offset", 0) + 1
    seconds, nanoseconds = divmod(found.get("timestamp", 0), 10**9)
    time = datetime.fromtimestamp(seconds, UTC).replace(microsecond=nanoseconds // 1000)
    headers = [
        (name.encode(), value)
        for name, value in found.get("headers", {}).items()
        if name not in _ITS_OWN
    ]
    return Item(
        number,
        found.get("subject", ""),
        found.get("value", b""),
        found.get("key") or None,
        headers,
        time=time.isoformat(),
    )
