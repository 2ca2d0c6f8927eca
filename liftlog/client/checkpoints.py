"""Checkpoints: the requests, and the methods that both clients have."""

from __future__ import annotations

from liftlog.client.requests import Answer
from liftlog.protocol.checkpoints import (
    Checkpoint,
    CheckpointAnswer,
    CheckpointsAnswer,
    CommitCheckpoint,
    DeleteCheckpoint,
    FetchCheckpoint,
    ListCheckpoints,
)
from liftlog.protocol.messages import Done, Message


class AsyncCheckpoints:
    """The asyncio client's methods."""

    async def _call(self, message: Message, expected: type[Answer]) -> Answer:
        raise NotImplementedError

    async def commit_checkpoint(
        self,
        consumer: str,
        stream: str,
        offset: int,
        expected: int | None = None,
        *,
        metadata: str = "",
        incarnation: str | None = None,
        epoch: int | None = None,
    ) -> None:
        """Store `offset` as the next one that `consumer` reads in `stream`; durable on return.

        With `expected` only if that is what is stored now; 0: nothing is. `incarnation` and
        `epoch` of what was read make sure that it is the same stream still; give both if you can.
        `metadata` is text of your own.

        Raises CheckpointMoved (`details["offset"]` is what is stored), StreamNotFound,
        OffsetOutOfRange beyond the log end, StaleIncarnation, Diverged, InvalidArgument.
        """
        request = CommitCheckpoint(stream, consumer, offset, expected, metadata, incarnation, epoch)
        await self._call(request, Done)

    async def fetch_checkpoint(
        self, consumer: str, stream: str, *, check: bool = True
    ) -> Checkpoint | None:
        """The stored checkpoint; None if there is none.

        One that the stream cannot be read from any more is an error, never skipped silently:
        StreamNotFound, StaleIncarnation, OffsetOutOfRange (below the log start or beyond the log
        end), Diverged; CheckpointUncertain when there is none, but damage may have cost it. With
        `check=False` it is returned as it is, with its `problem`.
        """
        request = FetchCheckpoint(stream, consumer, not check)
        return (await self._call(request, CheckpointAnswer)).info

    async def list_checkpoints(
        self, *, consumer: str | None = None, stream: str | None = None
    ) -> list[Checkpoint]:
        """Checkpoints of the streams that the principal may read, with their lag, by consumer and
        stream."""
        found: list[Checkpoint] = []
        after: str | None = None
        while True:
            page = await self._call(ListCheckpoints(stream, consumer, after), CheckpointsAnswer)
            found += page.infos
            after = page.after
            if after is None:
                return found

    async def delete_checkpoint(
        self, consumer: str, stream: str, expected: int | None = None
    ) -> None:
        """Forget a checkpoint, durably; no error if there is none. Raises CheckpointMoved when
        `expected` is not what is stored."""
        await self._call(DeleteCheckpoint(stream, consumer, expected), Done)


class SyncCheckpoints:
    """The blocking client's methods."""

    def _call(self, message: Message, expected: type[Answer]) -> Answer:
        raise NotImplementedError

    def commit_checkpoint(
        self,
        consumer: str,
        stream: str,
        offset: int,
        expected: int | None = None,
        *,
        metadata: str = "",
        incarnation: str | None = None,
        epoch: int | None = None,
    ) -> None:
        """As `Client.commit_checkpoint`."""
        request = CommitCheckpoint(stream, consumer, offset, expected, metadata, incarnation, epoch)
        self._call(request, Done)

    def fetch_checkpoint(
        self, consumer: str, stream: str, *, check: bool = True
    ) -> Checkpoint | None:
        """As `Client.fetch_checkpoint`."""
        request = FetchCheckpoint(stream, consumer, not check)
        return self._call(request, CheckpointAnswer).info

    def list_checkpoints(
        self, *, consumer: str | None = None, stream: str | None = None
    ) -> list[Checkpoint]:
        """As `Client.list_checkpoints`."""
        found: list[Checkpoint] = []
        after: str | None = None
        while True:
            page = self._call(ListCheckpoints(stream, consumer, after), CheckpointsAnswer)
            found += page.infos
            after = page.after
            if after is None:
                return found

    def delete_checkpoint(self, consumer: str, stream: str, expected: int | None = None) -> None:
        """As `Client.delete_checkpoint`."""
        self._call(DeleteCheckpoint(stream, consumer, expected), Done)
