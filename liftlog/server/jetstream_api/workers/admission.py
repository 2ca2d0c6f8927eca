"""Limits on the number of consumers with acks, and one change of a consumer at a time. No I/O."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from liftlog.server.jetstream_api.answers import JetStreamError, unavailable

_Key = TypeVar("_Key")

MAX_CONSUMERS = 10_000
MAX_OF_CLIENT = MAX_CONSUMERS // 2
"""Maximum number of consumers that one client may create after the start of the daemon."""
MAX_EPHEMERAL_OF_CLIENT = 128
NOBODY = b""
"""The client of a consumer that was created before the daemon started."""


class Place:
    """The place of one consumer. The place is in use until `leave` is called."""

    def __init__(self, admission: Admission, stream: str, party: bytes, *, is_durable: bool):
        self._admission: Admission | None = admission
        self.stream, self.party, self.is_durable = stream, party, is_durable

    def leave(self) -> None:
        admission, self._admission = self._admission, None
        if admission is not None:
            admission.count(self, -1)


class Admission:
    """Counts the consumers, including those that are being created."""

    def __init__(self) -> None:
        self.total = 0
        self._of_stream: Counter[str] = Counter()
        self._of_party: Counter[bytes] = Counter()
        self._ephemeral_of_party: Counter[bytes] = Counter()

    def enter(self, stream: str, party: bytes, most: int | None, *, is_durable: bool) -> Place:
        """Return a place for one more consumer. `most` is the limit of the stream; None if the
        stream has no limit. Raises JetStreamError if a limit is reached."""
        is_full = (
            self.total >= MAX_CONSUMERS
            or (most is not None and self._of_stream[stream] >= most)
            or self._of_party[party] >= MAX_OF_CLIENT
            or (not is_durable and self._ephemeral_of_party[party] >= MAX_EPHEMERAL_OF_CLIENT)
        )
        if is_full:
            raise JetStreamError(400, 10026, "maximum consumers limit reached")
        return self.enter_again(stream, party, is_durable=is_durable)

    def enter_again(self, stream: str, party: bytes = NOBODY, *, is_durable: bool) -> Place:
        """Return the place of a consumer that exists already, regardless of the limits."""
        place = Place(self, stream, party, is_durable=is_durable)
        self.count(place, 1)
        return place

    def count(self, place: Place, change: int) -> None:
        self.total += change
        _add(self._of_stream, place.stream, change)
        if place.party != NOBODY:
            _add(self._of_party, place.party, change)
            if not place.is_durable:
                _add(self._ephemeral_of_party, place.party, change)

    def is_used(self, stream: str) -> bool:
        """Return True if the stream has consumers, or one is being created."""
        return self._of_stream[stream] > 0


def _add(counts: Counter[_Key], key: _Key, change: int) -> None:
    counts[key] += change
    if not counts[key]:
        del counts[key]


class NameLocks:
    """One lock per consumer, so that changes of different consumers do not wait for each other."""

    def __init__(self) -> None:
        self._locks: dict[tuple[str, str], asyncio.Lock] = {}
        self._users: Counter[tuple[str, str]] = Counter()

    @asynccontextmanager
    async def hold(
        self, stream: str, name: str, *, seconds: float | None = None
    ) -> AsyncIterator[None]:
        """Wait for earlier changes of a consumer. Raises JetStreamError if they take longer than
        `seconds`, for example because the consumer cannot be loaded while the journal fails."""
        key = stream, name
        self._users[key] += 1
        lock = self._locks.setdefault(key, asyncio.Lock())
        try:
            try:
                async with asyncio.timeout(seconds):
                    await lock.acquire()
            except TimeoutError:
                raise unavailable("an earlier change of the consumer has not ended") from None
            try:
                yield
            finally:
                lock.release()
        finally:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key], self._locks[key]
