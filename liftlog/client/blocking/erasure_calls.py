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
        """Erase the records that meet all given conditions: their offsets are in `ranges`, they
        match `filter`, and their timestamps are at or after `since` and before `until`. At least
        one of these four arguments is required. One call takes at most 1,000 ranges, each [first,
        next).

        The erasure is durable on return. A read that begins later does not return these records.
        The bytes of the records stay in the files of the daemon until it rewrites their segments.

        - `dry_run`: count the records, and erase nothing. To erase exactly the counted records,
          pass (0, `end_offset` of the result) as the range.
        - `reason`: text that the daemon stores in its list of erasures.
        - `now`: the daemon begins at once to remove the bytes. `list_erasures` shows the progress.

        `count` in the result is the number of erased records. `unreadable_ranges` are ranges of
        damaged records, which cannot be erased.

        A search of a large stream can take longer than `request_timeout`. In this case the call
        raises RequestTimeout, but the daemon still executes the erasure.

        Raises StreamNotFound, Conflict if the stream belongs to a cluster or has
        `jetstream.max_msgs_per_subject`, StaleIncarnation if `incarnation` is not the stream's
        incarnation, LimitExceeded, InvalidArgument, and UnknownRequest if the daemon is too old.
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
        this erasure. Each entry has the number of records whose bytes are still in segments, and
        the reasons. Raises StreamNotFound, InvalidArgument if the erasure does not exist,
        UnknownRequest."""
        request = ListErasures(stream, erasure_id)
        return (self._call(request, ErasuresAnswer)).infos

    def remove_erased(self, stream: str, erasure_id: str = "") -> None:
        """Make the daemon remove the bytes of the records of one erasure at once. Without an id, it
        removes the bytes of all erased records. The call returns before the bytes are removed;
        `list_erasures` shows the progress. Raises StreamNotFound, InvalidArgument if the erasure
        does not exist, UnknownRequest."""
        self._call(RemoveErased(stream, erasure_id), Done)

    def prove_erasure(self, stream: str, erasure_id: str = "") -> ErasureProof:
        """Make the daemon search all files of a stream for the records of one erasure. Without an
        id, it searches for the records of all erasures.

        The search reads the headers of all batches, and can take longer than `request_timeout` for
        a large stream. It does not search free blocks of the disk, the page cache, snapshots of the
        file system, backups, exports, and the data of consumers. Raises StreamNotFound,
        InvalidArgument, LimitExceeded, UnknownRequest.
        """
        return (self._call(ProveErasure(stream, erasure_id), ProofAnswer)).proof

    def erased_offsets(self, stream: str, after: str = "") -> ErasedOffsets:
        """Return the offsets of all erased records of a stream, even if their bytes are already
        removed. A program that keeps a copy of the stream can then remove these records from its
        copy.

        `after` is `newest` of an earlier call. If no erasure followed, the result has no offsets.
        Needs the operation `read` on the whole stream. Raises StreamNotFound, Forbidden,
        LimitExceeded, UnknownRequest.
        """
        bitmaps: dict[int, bytes] = {}
        part: int | None = 0
        newest: str | None = None
        unknown, is_listed = 0, True
        while part is not None:
            request = ListErasedOffsets(stream, after, part)
            answer = self._call(request, ErasedOffsetsAnswer)
            bitmaps.update(zip(answer.parts, answer.bitmaps, strict=True))
            # A later erasure may miss in the first parts: the next call asks for it again.
            newest = answer.newest if newest is None else newest
            part, unknown, is_listed = answer.next_part, answer.unknown, answer.is_listed
        return ErasedOffsets(newest or "", bitmaps, unknown, is_listed)
