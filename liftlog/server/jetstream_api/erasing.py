"""STREAM.MSG.DELETE: erases single messages.

Each erasure writes three files, even if it erases one record. To save writes, further requests wait
while an erasure of their stream runs, and the next erasure carries out all of them.

In a stream with `max_msgs_per_subject`, older records of the subject can still be in the log,
although they are not shown. They are erased together with the message: otherwise the newest of them
would be shown in its place.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

from acl.rules import OVER_NATS
from acl.subjects import is_literal
from liftlog.errors import Conflict, LiftlogError, LimitExceeded, NotReady
from liftlog.log.erased import ErasedSet
from liftlog.server.commits.host import StreamHost
from liftlog.server.jetstream_api.answers import JetStreamError, bad_request
from liftlog.server.jetstream_api.fields import flag, whole
from liftlog.server.jetstream_api.lookups import Lookup, open_whole_lookup
from liftlog.server.jetstream_api.messages.ages import first_message
from liftlog.server.jetstream_api.methods import Answer, Request, answers
from liftlog.server.streams.erasing import Eraser

_REASON = "STREAM.MSG.DELETE"
_SEARCH_SECONDS = 4.0
"""Time limit of a search, in seconds. It is lower than the usual timeout of clients, 5 s."""
_SETTLE_SECONDS = 0.5
"""Time limit of the search for the messages before those that were deleted, in seconds."""
_TRIES = 3
"""Maximum number of searches for the records that are not shown, while new messages arrive."""


class Deletion(NamedTuple):
    """A message to delete."""

    offset: int
    subject: bytes
    """Empty if the subject is not text."""
    superseded: ErasedSet
    """Offsets of older records of the subject that are not shown."""
    newest: int | None = None
    """Offset of the last record of the subject before the search for `superseded`; None if no newer
    message can supersede a record that is left."""

    @property
    def offsets(self) -> ErasedSet:
        return self.superseded | ErasedSet.of_ranges([(self.offset, self.offset + 1)])

    def is_outdated(self, host: StreamHost) -> bool:
        """Return True if a message on the subject was committed after the search. It may have
        superseded a record that would be shown again without the deleted one."""
        return self.newest is not None and self.newest != _newest_of(host, self.subject)


class _Outdated(Exception):
    """Raised if the search has to be repeated."""


Result = bool | LiftlogError
"""True if the message was deleted. False if it did not exist any more. An error if the deletion
failed."""

Erase = Callable[[Request, StreamHost, Lookup, Sequence[Deletion]], Awaitable[list[Result]]]
"""Function that erases messages of one stream, and returns a result for each of them."""


class Deletions:
    """The deletions of all streams. Belongs to the event loop."""

    def __init__(self, erase: Erase) -> None:
        self._erase = erase
        self._queues: WeakKeyDictionary[StreamHost, _Queue] = WeakKeyDictionary()

    async def delete(self, request: Request, lookup: Lookup, one: Deletion) -> bool:
        """Erase a message, together with others of the same stream. Returns False if the message is
        erased already. Durable on return. Raises LiftlogErrors."""
        host = request.led_stream()
        queue = self._queues.setdefault(host, _Queue())
        done: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        queue.waiting.append((one, done))
        async with queue.lock:
            if not done.done():
                taken, queue.waiting = queue.waiting, []
                try:
                    results = await self._erase(request, host, lookup, [each for each, _ in taken])
                except BaseException:
                    # This request was cancelled. Another one carries out the rest.
                    queue.waiting[:0] = [each for each in taken if each[1] is not done]
                    raise
                for (_, waiting), result in zip(taken, results, strict=True):
                    if not waiting.done():
                        waiting.set_result(result)
        result = done.result()
        if isinstance(result, LiftlogError):
            raise result
        return result


class _Queue:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.waiting: list[tuple[Deletion, asyncio.Future[Result]]] = []


@contextlib.asynccontextmanager
async def search_limit() -> AsyncIterator[Callable[[], None]]:
    """Limit the time of the search of an erasure. The erasure ends the limit after its search: it
    calls the function that the context returns. Raises LimitExceeded."""
    try:
        async with asyncio.timeout(_SEARCH_SECONDS) as limit:
            yield lambda: limit.reschedule(None)
    except TimeoutError:
        raise LimitExceeded(
            "the search takes too long, or other erasures run",
            hint="try again, or use liftlog erase",
        ) from None


async def _erase(
    request: Request, host: StreamHost, lookup: Lookup, deletions: Sequence[Deletion]
) -> list[Result]:
    """Erase messages, and update the indexes and counts that depend on them. Returns a result for
    each message; an error applies to all messages."""
    seen = set[int]()
    try:
        if request.led_stream() is not host:  # the offsets of another one are other messages
            raise NotReady("the stream was deleted or moved meanwhile", hint="try again")
        async with search_limit() as is_found:
            with host.subjects.erasing():
                current, erased = await _hide(request, host, lookup, deletions, is_found)
                is_found()
                results: list[Result] = []
                for one in current:
                    is_done = (
                        erased.count_in(one.offset, one.offset + 1) > 0 and one.offset not in seen
                    )
                    seen.add(one.offset)
                    results.append(is_done)
                    if is_done:
                        await request.parts.buckets.erased(host, one.subject, one.offsets)
                    if is_done and not one.subject:
                        host.subjects.request_later()
                named = [one.subject.decode() for one in deletions if one.subject]
                await note_erased(host, lookup, named)
    except LiftlogError as error:
        return [error] * len(deletions)
    wake_consumers(request)
    return results


async def _hide(
    request: Request,
    host: StreamHost,
    lookup: Lookup,
    deletions: Sequence[Deletion],
    is_found: Callable[[], None],
) -> tuple[Sequence[Deletion], ErasedSet]:
    """Hide messages, and the records that would be shown in their place. Returns the deletions as
    they were carried out, and the offsets of the hidden records. Raises LiftlogErrors."""

    def confirm() -> None:
        if any(one.is_outdated(host) for one in deletions):
            raise _Outdated

    eraser = Eraser("", (OVER_NATS, _REASON, host.name), is_found, "jetstream", confirm)
    for _ in range(_TRIES):
        wanted = ErasedSet({})
        for one in deletions:
            wanted |= one.offsets
        try:
            erase = request.broker.erasing.erase_offsets
            found = await erase(host.name, wanted, eraser, reason=_REASON)
            return deletions, found.offsets
        except _Outdated:
            deletions = [await _searched(host, lookup, one) for one in deletions]
    raise NotReady("many messages arrive on the subject meanwhile", hint="try again")


async def _searched(host: StreamHost, lookup: Lookup, one: Deletion) -> Deletion:
    """Search the records of an outdated deletion again. The result has no records if the message
    itself is not shown any more."""
    if not one.is_outdated(host):
        return one
    newest = _newest_of(host, one.subject)
    if await lookup.at(one.offset) is None:
        return one._replace(superseded=ErasedSet({}), newest=None)
    superseded = await lookup.superseded(one.subject.decode(), one.offset)
    return one._replace(superseded=superseded, newest=newest)


def _newest_of(host: StreamHost, subject: bytes) -> int:
    """Return the offset of the last committed record of a subject, or of the whole stream if that
    one is unknown. Any thread may call this while no commit runs."""
    table = host.sequencer.subjects
    last = None if table is None else table.last_committed(subject)
    return host.log.high_watermark if last is None else last


_deletions = Deletions(_erase)


@answers("STREAM.MSG.DELETE", "stream_msg_delete", arguments=(1, 1), at_leader=True)
async def _delete(request: Request) -> Answer:
    request.authorize("delete")
    body, payload = request.body(), request.payload.strip()
    if not request.payload or (not body and payload.startswith(b"{")):
        raise bad_request()
    offset = whole(body, "seq", most=2**64)
    flag(body, "no_erase")
    host, lookup = open_whole_lookup(request)
    own = host.settings.jetstream
    if host.settings.read_only:
        raise JetStreamError(400, 10109, "invalid operation on sealed stream")
    if own is not None and own.deny_delete:
        raise _not_deleted("message delete not permitted")
    found = await lookup.at(offset) if 0 < offset < 2**63 else None
    if found is None:
        raise await _absent(host, lookup, offset)
    subject = found.record.subject.encode()
    if b"\\" in subject or not is_literal(found.record.subject):
        subject = b""
    superseded, newest = ErasedSet({}), None
    if own is not None and own.max_msgs_per_subject is not None:
        if not subject:
            raise _not_deleted("messages on this subject cannot be deleted one by one")
        if own.max_msgs_per_subject > 1:
            newest = _newest_of(host, subject)
        superseded = await lookup.superseded(found.record.subject, offset)
    request.authorize("delete")  # checked again: the ACL may have changed
    if request.led_stream() is not host:
        raise NotReady("the stream was deleted or moved meanwhile", hint="try again")
    try:
        one = Deletion(offset, subject, superseded, newest)
        is_done = await _deletions.delete(request, lookup, one)
    except Conflict as error:
        raise _not_deleted(str(error)) from None
    if not is_done:
        raise _not_found(offset)
    return {"success": True}


def _not_deleted(why: str) -> JetStreamError:
    return JetStreamError(500, 10057, why)


def _not_found(offset: int) -> JetStreamError:
    return JetStreamError(400, 10043, f"sequence {offset} not found")


async def _absent(host: StreamHost, lookup: Lookup, offset: int) -> JetStreamError:
    """Return the error for a message that does not exist; JetStream has three of them."""
    if offset >= host.log.high_watermark:
        return _not_deleted("stream store EOF")
    first, _ = await asyncio.to_thread(first_message, host.log, lookup.first_offset)
    return _not_deleted("no message found") if offset < first else _not_found(offset)


def wake_consumers(request: Request) -> None:
    """Wake the consumers of a stream, whose pending messages may have been erased."""
    for ordered in request.parts.consumers.of(request.stream):
        ordered.wake()
    for worked in request.parts.acked.of(request.stream):
        worked.wake()


async def note_erased(host: StreamHost, lookup: Lookup, subjects: Sequence[str]) -> None:
    """If the last messages of some subjects were erased, find the new last messages. If the search
    takes too long, a scan finds them later; until then, the table reports them as unknown."""
    table = host.sequencer.subjects
    if table is None:
        return
    if host.subjects.is_scanning:  # a search may have taken long just now
        host.subjects.request_later()
        return
    try:
        async with asyncio.timeout(_SETTLE_SECONDS):
            for subject in subjects:
                raw = subject.encode()
                if last := table.erased_last(raw):
                    left = await lookup.last_left(subject, last)
                    host.subjects.erased(raw, last, left)
    except (LimitExceeded, TimeoutError):
        host.subjects.request_later()
