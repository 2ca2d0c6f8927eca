"""A followed stream on its own log. The test acts as its leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from support.disks.logs import SMALL

from liftlog.cluster import transitions
from liftlog.cluster.record import StreamMetadata
from liftlog.log import Log
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.replication import Replicate
from liftlog.server.commits.observations import StreamObservations
from liftlog.server.replication.fetching import FetchRoom, FollowedStream
from liftlog.settings import StreamSettings

CONFIG = replace(SMALL, replicated=True)


class Host:
    """The host of a followed stream. Exclusive calls run at once. With `is_fast`, small appends run
    in the event loop."""

    name = "s"
    settings = StreamSettings(subject="s")

    def __init__(self, log: Log, *, is_fast: bool = True) -> None:
        self.log = log
        self.observed = StreamObservations()
        self.is_fast = is_fast
        self.failure = ""
        self.errors: list[Exception] = []

    def run_exclusive(self, call: Callable[[], object]) -> asyncio.Future[object]:
        future = asyncio.get_running_loop().create_future()
        try:
            future.set_result(call())
        except Exception as error:
            self.errors.append(error)
            future.set_exception(error)
        return future

    def run_inline(self, call: Callable[[], object]) -> bool:
        if not self.is_fast:
            return False
        try:
            call()
        except Exception as error:
            self.errors.append(error)
            raise
        return True

    def commit_up_to(self, offset: int) -> None:
        self.log.commit_up_to(offset)

    def fail(self, reason: str) -> None:
        self.failure = reason


class Link:
    """Stores the newest request, which the test answers."""

    def __init__(self) -> None:
        self.asked: tuple[Replicate, Exchange] | None = None

    def request(self, message: Any, exchange: Exchange) -> None:
        self.asked = message, exchange


def end_pause(stream: FollowedStream) -> None:
    """End the pause after a failed fetch."""
    stream._resume()


def followed(
    host: Host,
    link: Link,
    *,
    learn: Callable[[StreamMetadata], None] = lambda record: None,
    tell_record_is_old: Callable[[], None] = lambda: None,
    room: FetchRoom | None = None,
) -> FollowedStream:
    """Return a stream that follows node a."""
    record = transitions.create(
        "s", host.log.incarnation, {}, ["a", "b", "c"], starts=dict.fromkeys("abc", 1)
    )
    return FollowedStream(
        host,  # type: ignore[arg-type]
        record,
        "b",
        link_to=lambda node: link,  # type: ignore[arg-type, return-value]
        learn=learn,
        tell_record_is_old=tell_record_is_old,
        room=room or FetchRoom(),
    )
