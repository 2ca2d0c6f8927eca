"""Messages of a channel of NATS Streaming (STAN), for `liftlog import stan`.

The STAN server is itself a client of NATS. A client registers by a request, and is told the
subjects for further ones; messages of a subscription come to an inbox, and each one is acked. All
of it is protobuf: pb/protocol.proto of https://github.com/nats-io/stan.go
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from envelope import protobuf
from envelope.protobuf import BYTES, INT32, INT64, TEXT, Table
from liftlog.cli.imports.import_sources import Batches, Item, connected
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.problems import Problem

_CONNECT: Table = {
    1: ("client", TEXT),
    2: ("heartbeats", TEXT),
    3: ("protocol", INT32),
    4: ("connection", BYTES),
}
_CONNECTED: Table = {2: ("subscribe", TEXT), 4: ("close", TEXT), 5: ("error", TEXT)}
_SUBSCRIBE: Table = {
    1: ("client", TEXT),
    2: ("channel", TEXT),
    4: ("inbox", TEXT),
    5: ("in_flight", INT32),
    6: ("ack_seconds", INT32),
    10: ("start", INT32),
    11: ("sequence", INT64),
}
_SUBSCRIBED: Table = {2: ("acks", TEXT), 3: ("error", TEXT)}
_MESSAGE: Table = {
    1: ("sequence", INT64),
    2: ("channel", TEXT),
    4: ("value", BYTES),
    5: ("timestamp", INT64),
}
_ACK: Table = {1: ("channel", TEXT), 2: ("sequence", INT64)}
_CLOSE: Table = {1: ("client", TEXT)}

_LAST_RECEIVED, _AT_SEQUENCE = 1, 3
_PROTOCOL = 1
_IN_FLIGHT = 500
_ACK_SECONDS = 600
"""The server sends again what is not acked by then; until then, the copy may wait for an ack."""
_ANSWER_SECONDS = 5
_LAST_SECONDS = 10
_MESSAGE_SECONDS = 30


@dataclass(slots=True)
class NatsStreaming:
    """Messages of a channel, up to the one that is last when the copy begins."""

    servers: list[str]
    creds: str | None
    cluster: str
    channel: str
    total: int | None = field(default=None, init=False)

    async def batches(self, after: int) -> Batches:
        """Messages above the sequence `after`. Raises Problem."""
        async with self._opened() as session:
            last = await session.last(self.channel)
            self.total = max(last - after, 0)
            while after < last:
                async with aclosing(session.messages(self.channel, after + 1)) as batches:
                    async for items in batches:
                        after = items[-1].sequence
                        yield [item for item in items if item.sequence <= last]
                        if after >= last:
                            break

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[_Session]:
        from nats.errors import Error, NoRespondersError

        async with connected(self.servers, self.creds, "NATS Streaming") as connection:
            session = _Session(connection)
            try:
                await session.open(self.cluster)
                yield session
                # All was read; the server notices anyway.
                with suppress(Error, TimeoutError, Problem):
                    await session.close()
            except NoRespondersError as error:
                raise Problem(
                    f"no NATS Streaming server of the cluster {self.cluster!r} answers",
                    ExitCode.CANNOT_CONNECT,
                    hint="check --source-nats and --cluster: the server prints its cluster id when "
                    "it starts",
                ) from error
            except (Error, TimeoutError) as error:
                why = str(error) or type(error).__name__
                raise Problem(
                    f"channel {self.channel} of NATS Streaming cannot be read: {why}",
                    ExitCode.TRY_AGAIN,
                    hint="run the command again: it continues where it stopped",
                ) from error


class _Session:
    """A client as the STAN server knows it. The methods raise nats.errors.Error and Problem."""

    def __init__(self, connection: Any) -> None:
        self._nats = connection
        self._client = f"liftlog-import-{secrets.token_hex(8)}"
        self._subjects: dict[str, str] = {}

    async def open(self, cluster: str) -> None:
        heartbeats = self._nats.new_inbox()
        await self._nats.subscribe(heartbeats, cb=_answer_heartbeat)
        asked = protobuf.encode(
            (self._client, heartbeats, _PROTOCOL, secrets.token_bytes(16)), _CONNECT
        )
        self._subjects = await self._ask(f"_STAN.discover.{cluster}", asked, _CONNECTED)

    async def close(self) -> None:
        """Without it, the server forgets the client once heartbeats are not answered."""
        await self._ask(
            self._subjects["close"], protobuf.encode((self._client,), _CLOSE), {1: ("error", TEXT)}
        )

    async def last(self, channel: str) -> int:
        """The sequence of the last message."""
        inbox, _ = await self._subscribe(channel, _LAST_RECEIVED, 0)
        try:
            item = _item_of(await inbox.next_msg(timeout=_LAST_SECONDS))
        except TimeoutError as error:
            raise Problem(
                f"no message of channel {channel} came within {_LAST_SECONDS} s",
                ExitCode.NOT_FOUND,
                hint="the channel is empty, or its name is another: "
                "`curl http://SERVER:8222/streaming/channelsz` lists channels where the server has "
                "its monitoring on",
            ) from error
        await inbox.unsubscribe()
        return item.sequence

    async def messages(self, channel: str, first: int) -> AsyncGenerator[list[Item]]:
        """From the sequence `first` on, in order. What was yielded is acked when the next batch is
        asked for. It ends where the server sent something again, which is then out of order."""
        inbox, acks = await self._subscribe(channel, _AT_SEQUENCE, first)
        try:
            expected = first
            while True:
                messages = [await inbox.next_msg(timeout=_MESSAGE_SECONDS)]
                while inbox.pending_msgs and len(messages) < _IN_FLIGHT:
                    messages.append(await inbox.next_msg(timeout=_MESSAGE_SECONDS))
                items = [_item_of(message) for message in messages]
                for item in items:
                    if item.sequence < expected:
                        return
                    expected = item.sequence + 1
                yield items
                for item in items:
                    ack = protobuf.encode((channel, item.sequence), _ACK)
                    await self._nats.publish(acks, ack)
        finally:
            await inbox.unsubscribe()

    async def _subscribe(self, channel: str, start: int, sequence: int) -> tuple[Any, str]:
        """(inbox of the messages, subject for acks)"""
        name = self._nats.new_inbox()
        inbox = await self._nats.subscribe(name, pending_bytes_limit=-1)  # bounded by _IN_FLIGHT
        values = (self._client, channel, name, _IN_FLIGHT, _ACK_SECONDS, start, sequence)
        asked = protobuf.encode(values, _SUBSCRIBE)
        answer = await self._ask(self._subjects["subscribe"], asked, _SUBSCRIBED)
        return inbox, answer["acks"]

    async def _ask(self, subject: str, request: bytes, table: Table) -> dict[str, str]:
        message = await self._nats.request(subject, request, timeout=_ANSWER_SECONDS)
        answer = protobuf.decode(message.data, table)
        if answer is None or answer.get("error"):
            why = "an answer that is not STAN's" if answer is None else answer["error"]
            raise Problem(f"NATS Streaming refused: {why}", ExitCode.CONFLICT)
        return answer


async def _answer_heartbeat(message: Any) -> None:
    await message.respond(b"")


def _item_of(message: Any) -> Item:
    found = protobuf.decode(message.data, _MESSAGE)
    if found is None or found.get("sequence", 0) < 1:
        raise Problem("NATS Streaming sent what is not a message", ExitCode.DAMAGED)
    seconds, nanoseconds = divmod(found.get("timestamp", 0), 10**9)
    time = datetime.fromtimestamp(seconds, UTC).replace(microsecond=nanoseconds // 1000)
    return Item(
        found["sequence"], found.get("channel", ""), found.get("value", b""), time=time.isoformat()
    )
