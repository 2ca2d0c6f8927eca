"""Reads of the bucket: one key, all keys, the state. An answer may be outdated."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import TypeVar

from liftlog.cluster.store import StoreUnavailable
from liftlog.server.metadata.kv_bucket import (
    NO_JETSTREAM,
    NO_STREAM,
    Bucket,
    Found,
    Refused,
    State,
    found_message,
)
from liftlog.server.metadata.kv_link import KvLink, NobodyAnswers, Unanswered

logger = logging.getLogger("liftlog.server.replication")

ANSWER_SECONDS = 3.0
_READS_AT_ONCE = 64

_T = TypeVar("_T")


class BucketMissing(StoreUnavailable):
    """JetStream does not have the bucket: it was deleted, or never created."""


class BucketReads:
    """Reads one bucket. All methods raise StoreUnavailable. Reads raise BucketMissing if there is
    no bucket, and NobodyAnswers if no JetStream runs."""

    def __init__(self, link: KvLink, bucket: Bucket) -> None:
        self._link = link
        self._bucket = bucket

    async def find(self, key: str) -> Found:
        """Return the newest message of a key."""
        question = json.dumps({"last_by_subj": self._bucket.subject(key)}).encode()
        return await self._read("STREAM.MSG.GET", question, found_message)

    async def state(self) -> State:
        """Return the configuration and the counts of the bucket."""
        return await self._read("STREAM.INFO", b"", self._bucket.state)

    async def scan(self, prefix: str) -> tuple[dict[str, Found], State]:
        """Return the newest message of each key, and the state of the bucket before these reads."""
        state = await self.state()
        keys: list[str] = []
        total = 1
        while len(keys) < total:
            filter_ = {"subjects_filter": self._bucket.subjects(prefix), "offset": len(keys)}
            question = json.dumps(filter_).encode()
            more, total = await self._read("STREAM.INFO", question, self._bucket.keys)
            if not more:
                break
            keys += more
        found: dict[str, Found] = {}
        left = iter(dict.fromkeys(keys))

        async def read() -> None:
            for key in left:
                try:
                    found[key] = await self.find(key)
                except ValueError:  # this is no key: another program wrote the message
                    logger.warning("metadata-key-ignored key=%r", key)

        tasks = [asyncio.ensure_future(read()) for _ in range(min(_READS_AT_ONCE, len(keys)))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return found, state

    async def _read(self, what: str, question: bytes, parse: Callable[[bytes], _T | None]) -> _T:
        """Send a request that reads, and return the parsed answer. Raises StoreUnavailable."""
        subject = f"$JS.API.{what}.{self._bucket.stream}"
        try:
            return await self._link.ask(subject, question, parse, seconds=ANSWER_SECONDS)
        except Refused as error:
            if error.code == NO_STREAM:
                raise BucketMissing(
                    f"there is no bucket {self._bucket.name}: it was deleted, or never made"
                ) from error
            if error.code in NO_JETSTREAM:
                raise NobodyAnswers(f"JetStream: {error}") from error
            raise StoreUnavailable(f"JetStream: {error}") from error
        except Unanswered as error:
            raise StoreUnavailable(str(error)) from error
