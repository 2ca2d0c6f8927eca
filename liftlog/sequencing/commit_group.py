"""A commit group: the records that one write and one fsync make durable, and the waiting
answers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import partial, reduce
from itertools import accumulate
from operator import add
from typing import NamedTuple

from envelope.liftbridge import Ack
from liftlog.records.encode import EncodedBatch, encode_batch, encode_single
from liftlog.sequencing.acks import Echo
from liftlog.sequencing.run import MESSAGE_OVERHEAD_BYTES
from liftlog.sequencing.subject_sequences import Notes

_BATCH_OVERHEAD_BYTES = 256
_RECORD_OVERHEAD_BYTES = 20  # per record: offsets in three columns, a time, a subject id, some bits


class CommitGroup:
    """Records in offset order as columns, and the answers that wait for them.

    `keys` and `headers` stay None until a record has a key or a header. `ack_replies` has one entry
    per record, b"" for no ack. `answers` are complete commands: answers to duplicates, refusals,
    acks with a correlation id. `early_answers` are complete commands that are sent as soon as the
    group is durable on this node. The acks in `timed_acks`, tuples (reply, ack, offset), are
    completed with the time of the commit. If the group fails, none of these answers is sent, and
    `waiting_replies` and `waiting` get nacks. `waiting` also has the fields that a nack must
    repeat. `subject_notes` is None if the stream does not store the last offset of each subject.
    `rollups` has the row and the subject of each record that erases older ones, b"" for all.
    """

    __slots__ = (
        "ack_replies",
        "answers",
        "base_offset",
        "early_answers",
        "has_acks",
        "has_tombstones",
        "headers",
        "id_marks",
        "keys",
        "last_message_id_before",
        "prepared_answers",
        "received",
        "rollups",
        "size_bytes",
        "stamps",
        "subject_notes",
        "subjects",
        "timed_acks",
        "values",
        "waiting",
        "waiting_replies",
    )

    def __init__(self, base_offset: int, last_message_id: bytes) -> None:
        self.base_offset = base_offset
        self.last_message_id_before = last_message_id
        self.subjects: list[bytes] = []
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] | None = None
        self.headers: list[bytes] | None = None
        self.has_tombstones = False
        self.stamps: list[tuple[int, int]] = []
        self.ack_replies: list[bytes] = []
        self.has_acks = False
        self.answers: list[bytes] = []
        self.early_answers: list[bytes] = []
        self.timed_acks: list[tuple[bytes, Ack, int]] = []
        self.waiting: list[tuple[bytes, Echo]] = []
        self.waiting_replies: list[bytes] = []
        self.id_marks: list[bytes] = []
        self.subject_notes: Notes | None = None
        self.prepared_answers: bytes | None = None
        self.received = 0
        self.rollups: list[tuple[int, bytes]] | None = None
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self.values)

    @property
    def next_offset(self) -> int:
        return self.base_offset + len(self.values)

    @property
    def memory_bytes(self) -> int:
        """Approximate memory that the group takes until it is committed."""
        return self.size_bytes + MESSAGE_OVERHEAD_BYTES * self.received

    @property
    def last_timestamp_ns(self) -> int:
        return self.stamps[-1][0] if self.stamps else 0

    def add_stamp(self, timestamp_ns: int, count: int) -> None:
        """Add `count` records with this timestamp."""
        if self.stamps and self.stamps[-1][0] == timestamp_ns:
            count += self.stamps.pop()[1]
        self.stamps.append((timestamp_ns, count))

    def pad_headers(self) -> list[bytes]:
        """Return the header column, created if missing and padded to the current number of
        records."""
        if self.headers is None:
            self.headers = []
        self.headers += [b""] * (len(self.values) - len(self.headers))
        return self.headers

    def key_by_subject(self) -> None:
        """Use the subject as key of each record that has no key."""
        pairs = zip(self.pad_keys(), self.subjects, strict=True)
        self.keys = [subject if key is None else key for key, subject in pairs]

    def pad_keys(self) -> list[bytes | None]:
        if self.keys is None:
            self.keys = []
        self.keys += [None] * (len(self.values) - len(self.keys))
        return self.keys

    def encode(
        self, *, leader_epoch: int, commit_group: int, max_records: int, max_bytes: int
    ) -> list[EncodedBatch]:
        """Return the records as batches within these limits, in the order of their offsets."""
        count = len(self.values)
        if count == 1 and self.headers is None and self.keys is None and not self.has_tombstones:
            (stamp, _), value = self.stamps[0], self.values[0]
            assert value is not None
            batch = encode_single(
                base_offset=self.base_offset,
                leader_epoch=leader_epoch,
                commit_group=commit_group,
                timestamp_ns=stamp,
                subject=self.subjects[0],
                value=value,
            )
            return [batch]
        if self.headers is not None:
            self.pad_headers()
        if self.keys is not None:
            self.pad_keys()
        overhead = _BATCH_OVERHEAD_BYTES + _RECORD_OVERHEAD_BYTES * count
        if count <= max_records and self.size_bytes + overhead <= max_bytes:
            encoded = self._encode_range(0, count, leader_epoch, commit_group)
            if len(encoded.data) <= max_bytes or count == 1:
                return [encoded]
            bounds = [(0, count)]
        else:
            bounds = self._split(max_records, max_bytes)
        bounds.reverse()
        batches = []
        while bounds:
            lo, hi = bounds.pop()
            encoded = self._encode_range(lo, hi, leader_epoch, commit_group)
            if len(encoded.data) > max_bytes and hi - lo > 1:
                # The batch is too large because of long or escaped subjects, whose size is only
                # known after they are encoded.
                middle = (lo + hi) // 2
                bounds += [(middle, hi), (lo, middle)]
            else:
                batches.append(encoded)
        return batches

    def _encode_range(self, lo: int, hi: int, leader_epoch: int, commit_group: int) -> EncodedBatch:
        whole = lo == 0 and hi == len(self.values)
        stamps = self.stamps if whole else _slice_stamps(self.stamps, lo, hi)
        data = encode_batch(
            base_offset=self.base_offset + lo,
            leader_epoch=leader_epoch,
            commit_group=commit_group,
            stamps=stamps,
            subjects=self.subjects if whole else self.subjects[lo:hi],
            values=self.values if whole else self.values[lo:hi],
            keys=self.keys if whole or self.keys is None else self.keys[lo:hi],
            headers=self.headers if whole or self.headers is None else self.headers[lo:hi],
            has_tombstones=self.has_tombstones,
        )
        first = stamps[0][0]
        largest = first if len(stamps) == 1 else max(stamps)[0]
        base = self.base_offset
        return EncodedBatch(data, base + lo, base + hi, hi - lo, first, largest)

    def _split(self, max_records: int, max_bytes: int) -> list[tuple[int, int]]:
        """Return the ranges of records for batches within the limits. A single record may exceed
        the limits."""
        columns = [
            column for column in (self.values, self.headers, self.keys) if column is not None
        ]
        sizes = reduce(partial(map, add), map(_lengths, columns))
        ends = list(accumulate(map(_RECORD_OVERHEAD_BYTES.__add__, sizes)))
        capacity = max_bytes - _BATCH_OVERHEAD_BYTES
        bounds = []
        lo = before = 0
        while lo < len(ends):
            most = min(len(ends), lo + max_records)
            hi = max(bisect_right(ends, before + capacity, lo, most), lo + 1)
            bounds.append((lo, hi))
            lo, before = hi, ends[hi - 1]
        return bounds


def _lengths(column: Sequence[bytes | None]) -> Iterable[int]:
    if None in column:
        return [len(item or b"") for item in column]
    return map(len, column)  # type: ignore[arg-type]  # no None


class HeldGroup(NamedTuple):
    """The answers and counts of a group that is durable on this node and waits to be committed."""

    next_offset: int
    answers: bytes
    timed_acks: list[tuple[bytes, Ack, int]]
    received: int
    records: int
    memory_bytes: int
    """Memory that the group took before it was held, in bytes."""


class Released(NamedTuple):
    """Held groups that are now committed, and the NATS commands with all answers that waited for
    their commit."""

    answers: bytes
    groups: list[HeldGroup]


def _slice_stamps(stamps: list[tuple[int, int]], lo: int, hi: int) -> list[tuple[int, int]]:
    found = []
    at = 0
    for stamp, count in stamps:
        overlap = min(hi, at + count) - max(lo, at)
        if overlap > 0:
            found.append((stamp, overlap))
        at += count
    return found
