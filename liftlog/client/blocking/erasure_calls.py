# Made from liftlog/client/aio/erasure_calls.py by `make blocking`: edit that one.
"""The calls of the blocking client that erase records, and ask about erasures."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from liftlog.client.blocking.consumer_calls import SyncConsumerCalls
from liftlog.client.reading.read_options import Filter
from liftlog.client.requests import erase_request
from liftlog.protocol.administration import (
    Erased,
    ErasedOffsets,
    ErasedOffsetsAnswer,
    ErasureProof,
    ErasuresAnswer,
    ListErasedOffsets,
    ListErasures,
    ProofAnswer,
    ProveErasure,
    RemoveErased,
)
from liftlog.protocol.described import ErasureInfo
from liftlog.protocol.messages import Done


class SyncErasureCalls(SyncConsumerCalls):
    """Calls that erase records. A call that gets no answer within `request_timeout` seconds raises
    RequestTimeout."""

    def erase(
        self,
        name: str,
        ranges: Sequence[tuple[int, int]] = (),
        *,
        filter: Filter | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        reason: str = "",
        dry_run: bool = False,
        now: bool = False,
        incarnation: str | None = None,
    ) -> Erased:
        """Erase the records in some ranges of offsets, each [first, next), that match `filter` and
        have timestamps at or after `since` and before `until`. Without `ranges`, all offsets count.
        At least one of the arguments must be given. One call takes at most 1,000 ranges.

        The erasure is durable on return. No read that begins afterwards shows one of the records.
        The bytes of the records stay in the files of the daemon until it rewrites their segments.
        `count` in the result is the number of erased records, and `unreadable_ranges` are ranges of
        damaged records, which could not be erased. With `dry_run`, nothing is erased. To erase
        exactly the records that a dry run has counted, pass (0, `end_offset` of its result) as the
        range. `reason` is stored in the daemon's list of erasures. With `now`, the daemon begins to
        remove the bytes at once; `list_erasures` shows how many are left.

        A search of a large stream can take longer than `request_timeout`. In this case the call
        raises RequestTimeout, but the daemon still carries out the erasure.

        Raises StreamNotFound, Conflict for a stream of a cluster or with a number of messages per
        subject, StaleIncarnation if `incarnation` is not the stream's incarnation, LimitExceeded,
        InvalidArgument, and UnknownRequest if the daemon is too old.
        """
        request = erase_request(
            name,
            ranges,
            filter=filter,
            since=since,
            until=until,
            reason=reason,
            dry_run=dry_run,
            now=now,
            incarnation=incarnation,
        )
        return self._call(request, Erased)

    def list_erasures(self, stream: str, erasure_id: str = "") -> list[ErasureInfo]:
        """Return the newest 1,000 erasures of a stream, the newest first. With an id, return only
        this erasure. Each entry gives the number of erased bytes that are left in the segments, and
        the reason. Raises StreamNotFound, InvalidArgument if there is no such erasure,
        UnknownRequest."""
        request = ListErasures(stream, erasure_id)
        return (self._call(request, ErasuresAnswer)).infos

    def remove_erased(self, stream: str, erasure_id: str = "") -> None:
        """Let the daemon remove at once the bytes of the records of one erasure, or of all erased
        records if there is no id. The call returns before the bytes are gone; `list_erasures` shows
        how many are left. Raises StreamNotFound, InvalidArgument if there is no such erasure,
        UnknownRequest."""
        self._call(RemoveErased(stream, erasure_id), Done)

    def prove_erasure(self, stream: str, erasure_id: str = "") -> ErasureProof:
        """Let the daemon search all files of a stream for the records of one erasure. Without an
        id, it searches for the records of all erasures.

        The search reads the headers of all batches, and can take longer than `request_timeout` for
        a large stream. It does not cover free blocks of the disk, the page cache, snapshots of the
        file system, backups, exports, and consumers. Raises StreamNotFound, InvalidArgument,
        LimitExceeded, UnknownRequest.
        """
        return (self._call(ProveErasure(stream, erasure_id), ProofAnswer)).proof

    def erased_offsets(self, stream: str, after: str = "") -> ErasedOffsets:
        """Return the offsets of all erased records of a stream, also of those whose bytes are gone,
        so that a copy of the stream can remove them, too.

        `after` is `newest` of an earlier call. If no erasure followed, the result has no offsets.
        Needs the operation `read` on the whole stream. Raises StreamNotFound, Forbidden,
        LimitExceeded, UnknownRequest.
        """
        bitmaps: dict[int, bytes] = {}
        part: int | None = 0
        newest: str | None = None
        unknown = 0
        while part is not None:
            request = ListErasedOffsets(stream, after, part)
            answer = self._call(request, ErasedOffsetsAnswer)
            bitmaps.update(zip(answer.parts, answer.bitmaps, strict=True))
            # A later erasure may miss in the first parts: the next call asks for it again.
            newest = answer.newest if newest is None else newest
            part, unknown = answer.next_part, answer.unknown
        return ErasedOffsets(newest or "", bitmaps, unknown)
