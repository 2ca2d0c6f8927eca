"""STREAM.PURGE: deletes the oldest messages of a stream, or the messages on some subjects.

To delete the oldest records, the module moves the log start. To delete the records of some
subjects, it erases them, as STREAM.MSG.DELETE erases a single record. In a stream with
`max_msgs_per_subject`, a tombstone deletes the records of a subject. A tombstone is a record like
any other, so it is durable and on all replicas before the answer is sent. From then on readers skip
the deleted records, and compaction removes their bytes later.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import chain

from acl.rules import OVER_NATS
from acl.subjects import is_literal, is_subset, why_no_subject
from liftlog.errors import Conflict, LiftlogError, NotReady, RequestTimeout
from liftlog.protocol.administration import TruncateStream
from liftlog.protocol.described import StreamInfo
from liftlog.protocol.messages import StreamAnswer
from liftlog.records.columns.selection import parse_selection
from liftlog.server.commits.host import StreamHost
from liftlog.server.jetstream_api.answers import JetStreamError, bad_request
from liftlog.server.jetstream_api.erasing import note_erased, search_limit, wake_consumers
from liftlog.server.jetstream_api.fields import text, whole
from liftlog.server.jetstream_api.inboxes import party_of
from liftlog.server.jetstream_api.lookups import Lookup, TooManyResults, open_whole_lookup
from liftlog.server.jetstream_api.messages.newest import partial_key
from liftlog.server.jetstream_api.methods import Answer, Request, answers
from liftlog.server.jetstream_api.streams import asked, description, settings_of
from liftlog.server.streams.erasing import Eraser, Wanted
from liftlog.server.streams.retention import first_of_newest

_AT_ONCE = 500
"""Number of tombstones that are written before other tasks run."""
_COMMIT_SECONDS = 4.0
"""Time limit of a commit, in seconds. It is lower than the usual timeout of clients, 5 s."""
_SETTLE_SECONDS = 1.0
"""Maximum time, in seconds, to wait for the last messages of the subjects."""


@answers("STREAM.PURGE", "stream_purge", arguments=(1, 1), at_leader=True)
async def _purge(request: Request) -> Answer:
    request.authorize("delete")
    body = request.body()
    keep, seq = whole(body, "keep"), whole(body, "seq")
    subject = text(body, "filter")
    if keep and seq:
        raise bad_request()
    if subject and why_no_subject(subject) is not None:
        raise bad_request("invalid subject")
    info = await description(request)
    settings = settings_of(info)
    if settings.read_only:
        raise JetStreamError(400, 10109, "invalid operation on sealed stream")
    if settings.jetstream is not None and settings.jetstream.deny_purge:
        raise _not_purged("stream purge not permitted")
    if not subject or all(is_subset(one, subject) for one in info.recorded_subjects):
        return {"success": True, "purged": await _purge_oldest(request, info, keep, seq)}
    return {"success": True, "purged": await _purge_subjects(request, subject, keep, seq)}


def _not_purged(why: str) -> JetStreamError:
    return JetStreamError(500, 10110, why)


# --- the oldest ---


async def _purge_oldest(request: Request, info: StreamInfo, keep: int, seq: int) -> int:
    offset = await _purge_below(request, info, keep, seq)
    if offset <= info.log_start_offset:
        return 0
    message = TruncateStream(request.stream, offset, info.incarnation)
    try:
        answer = await asked(request, message, StreamAnswer)
    except Conflict as error:
        raise _not_purged(str(error)) from None
    purged = (info.record_count or 0) - (answer.info.record_count or 0)
    purged += answer.info.high_watermark - info.high_watermark
    return max(0, purged)


async def _purge_below(request: Request, info: StreamInfo, keep: int, seq: int) -> int:
    """Return the offset of the first record that is kept."""
    end = info.high_watermark
    if keep:
        if end - info.log_start_offset == info.record_count:
            return max(info.log_start_offset, end - keep)
        return await asyncio.to_thread(first_of_newest, request.led_stream().log, keep)
    return min(seq, end) if seq else end


# --- some subjects ---


async def _purge_subjects(request: Request, pattern: str, keep: int, seq: int) -> int:
    host, lookup = open_whole_lookup(request)
    own = host.settings.jetstream
    if own is None or own.max_msgs_per_subject is None:
        return await _erase_subjects(request, host, lookup, pattern, keep, seq)
    try:
        found = await lookup.of_subjects(pattern)
    except TooManyResults:
        raise _not_purged("too many subjects match: purge fewer at a time") from None
    request.authorize("delete")  # checked again: the ACL may have changed
    below = _first_kept(found, keep) if keep else seq
    doomed = {
        subject: bisect_left(offsets, below) if below else len(offsets)
        for subject, offsets in found.items()
    }
    going = [subject for subject, count in doomed.items() if count]
    purged = 0
    for start in range(0, len(going), _AT_ONCE):
        if request.led_stream() is not host:
            raise NotReady("the stream was deleted or moved meanwhile", hint="try again")
        wanted = going[start : start + _AT_ONCE]
        # There is no await between this look-up and the tombstones. So a message that has just
        # arrived is deleted only if the purge covers it.
        keys = [_key(host, one, found[one][doomed[one] :], below) for one in wanted]
        named = {one: key for one, key in zip(wanted, keys, strict=True) if key}
        await _delete(host, list(named), list(named.values()))
        purged += sum(doomed[subject] for subject in named)
    return purged


async def _erase_subjects(
    request: Request, host: StreamHost, lookup: Lookup, pattern: str, keep: int, seq: int
) -> int:
    """Erase the messages on some subjects. Only the search has a time limit."""
    first, end = lookup.first_offset, host.log.high_watermark
    end = min(seq, end) if seq else end
    if first >= end:
        return 0
    wanted = Wanted(((first, end),), parse_selection(subjects=[pattern]))
    is_one = is_literal(pattern)
    try:
        async with search_limit() as is_found:

            def check() -> None:
                request.authorize("delete")  # checked again: the ACL may have changed
                is_found()

            eraser = Eraser("", (OVER_NATS, party_of(request.reply)), check, "jetstream")
            with host.subjects.erasing():
                erased = await request.broker.erasing.erase_matching(
                    host.name,
                    wanted,
                    eraser,
                    reason="STREAM.PURGE",
                    keep=keep,
                    scans_subjects=not is_one,
                )
                is_found()
                if is_one:
                    await note_erased(host, lookup, [pattern])
    except Conflict as error:
        raise _not_purged(str(error)) from None
    await host.subjects.settled(_SETTLE_SECONDS)
    wake_consumers(request)
    return len(erased.offsets)


def _first_kept(found: Mapping[bytes, Sequence[int]], keep: int) -> int:
    """Return the offset of the first of the last `keep` messages, counted over all subjects."""
    offsets = sorted(chain.from_iterable(found.values()))
    return offsets[-keep] if keep < len(offsets) else 1


def _key(host: StreamHost, subject: bytes, rest: Sequence[int], below: int) -> bytes:
    """Return the key of the tombstone. If the newest records are kept, the key names the offset
    below which all records of the subject are deleted. The key is empty if no tombstone is needed,
    because the only shown record is kept."""
    if not rest and not (below and _last_offset(host, subject) >= below):
        return subject
    own = host.settings.jetstream
    if own is None or own.max_msgs_per_subject == 1:
        return b""
    return partial_key(rest[0] if rest else below)


async def _delete(host: StreamHost, subjects: Sequence[bytes], keys: Sequence[bytes]) -> None:
    """Write tombstones, and wait until they are committed. Raises LiftlogError."""
    committed: asyncio.Future[LiftlogError | None] = asyncio.get_running_loop().create_future()

    def told(error: LiftlogError | None) -> None:
        if not committed.done():
            committed.set_result(error)

    if not subjects:
        return
    host.store(subjects, keys, [None] * len(subjects), told)
    try:
        async with asyncio.timeout(_COMMIT_SECONDS):
            error = await committed
    except TimeoutError:
        raise RequestTimeout(
            "the purge is not committed yet, and may be later", hint="ask again"
        ) from None
    if error is not None:
        raise error


def _last_offset(host: StreamHost, subject: bytes) -> int:
    table = host.sequencer.subjects
    last = None if table is None else table.last_offset(subject)
    if last is None:
        raise _not_purged("seq needs subject_sequences, which do not know this subject now")
    return last
