"""Requests that change streams, lease them, or ask about the daemon, and their answers.

Registered in `messages.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

from liftlog.protocol.described import (
    DaemonInfo,
    ErasureInfo,
    LeaseInfo,
    ProvenFile,
    Removal,
    StreamInfo,
)
from liftlog.protocol.wire import BOOL, LABEL, MAP, NAME, Message, array_of, one_of, raw, text, uint
from liftlog.protocol.wire import wire as key

_MAX_LEASES = 1000
MAX_EXTENTS = 4096
MAX_ERASED_RANGES = 4096
MAX_REQUESTED_RANGES = 1000
"""Maximum number of ranges in a request: their borders must fit into `MAX_REQUEST_VALUES`."""
MAX_SHOWN_SUBJECTS = 8
MAX_ERASURES = 1000
MAX_ERASED_PARTS = 4096


# --- requests -------------------------------------------------------------------


class UpdateStream(Message):
    """Changes the named settings of a stream; other settings stay unchanged."""

    KIND: ClassVar[str] = "update"
    stream: str = key("s", NAME)
    settings: dict[str, Any] = key("c", MAP)
    dry_run: bool = key("d", BOOL, default=False)
    allow_deletion: bool = key("y", BOOL, default=False)

    @property
    def is_repeatable(self) -> bool:
        """True for a dry run. A real update must not be repeated: the second answer would not
        contain the changes that the first update made."""
        return self.dry_run


class PauseStream(Message):
    KIND: ClassVar[str] = "pause"
    REPEATABLE: ClassVar[bool] = True
    stream: str = key("s", NAME)


class ResumeStream(Message):
    KIND: ClassVar[str] = "resume"
    REPEATABLE: ClassVar[bool] = True
    stream: str = key("s", NAME)


class SetReadOnly(Message):
    KIND: ClassVar[str] = "readonly"
    REPEATABLE: ClassVar[bool] = True
    stream: str = key("s", NAME)
    read_only: bool = key("o", BOOL)


class TruncateStream(Message):
    """Makes `offset` the log start. The records below are permanently deleted."""

    KIND: ClassVar[str] = "truncate"
    stream: str = key("s", NAME)
    offset: int = key("o", uint())
    incarnation: str | None = key("x", LABEL, default=None)

    @property
    def is_repeatable(self) -> bool:
        """True if the incarnation is given. Without an incarnation, the name might belong to
        another stream at the time of the repetition."""
        return self.incarnation is not None


class EraseRecords(Message):
    """Hides the records that are in some ranges of offsets and match a filter. No reader gets them.

    `borders` are the first offset and the end of each range; without ranges, all offsets count. The
    filters are those of `fetch`; a record must match all given filters. `since_ns` and `until_ns`
    (exclusive) are the bounds of its timestamp. With `dry_run`, the daemon only counts the records.
    With `now`, it begins to remove their bytes at once; the answer does not wait for the end of the
    removal.
    """

    KIND: ClassVar[str] = "erase"
    stream: str = key("s", NAME)
    borders: list[int] = key("o", array_of(uint(), 2 * MAX_REQUESTED_RANGES), default_factory=list)
    reason: str = key("r", LABEL, default="")
    dry_run: bool = key("d", BOOL, default=False)
    incarnation: str | None = key("x", LABEL, default=None)
    filter_subjects: list[str] | None = key("fs", array_of(text(1024), 64), default=None)
    filter_keys: list[bytes] | None = key("fk", array_of(raw(0, 65_536), 1024), default=None)
    filter_headers: list[str] | None = key("fh", array_of(text(4096), 16), default=None)
    since_ns: int | None = key("fb", uint(), default=None)
    until_ns: int | None = key("fa", uint(), default=None)
    now: bool = key("n", BOOL, default=False)

    @property
    def is_repeatable(self) -> bool:
        """True for a dry run. The repetition of an erasure would count no record."""
        return self.dry_run

    @property
    def ranges(self) -> list[tuple[int, int]]:
        return list(zip(self.borders[::2], self.borders[1::2], strict=False))

    @property
    def selects(self) -> bool:
        """True if the request has a filter or a bound of time."""
        filters = (self.filter_subjects, self.filter_keys, self.filter_headers)
        return any(one is not None for one in (*filters, self.since_ns, self.until_ns))


class ListErasures(Message):
    """Asks for the erasures of a stream, or for one of them."""

    KIND: ClassVar[str] = "erasures"
    REPEATABLE: ClassVar[bool] = True
    stream: str = key("s", NAME)
    erasure_id: str = key("e", LABEL, default="")


class ProveErasure(Message):
    """Asks the daemon to search the files of a stream for the records of one erasure. Without an
    id, the daemon searches for the records of all erasures. The search reads much of the stream."""

    KIND: ClassVar[str] = "prove"
    REPEATABLE: ClassVar[bool] = True
    stream: str = key("s", NAME)
    erasure_id: str = key("e", LABEL, default="")


class ListErasedOffsets(Message):
    """Asks for the offsets of all erased records, including records whose bytes were removed.
    `after` is `newest` of an earlier answer: if nothing was erased since, the answer has no
    offsets. The answer begins with the part (2^24 offsets) with number `part`."""

    KIND: ClassVar[str] = "erasedoffsets"
    REPEATABLE: ClassVar[bool] = True
    stream: str = key("s", NAME)
    after: str = key("e", LABEL, default="")
    part: int = key("p", uint(), default=0)


class RemoveErased(Message):
    """Lets the daemon remove at once the bytes of the records of one erasure, or of all erased
    records if there is no id. The answer does not wait for the end of the removal."""

    KIND: ClassVar[str] = "eraseremove"
    REPEATABLE: ClassVar[bool] = True
    stream: str = key("s", NAME)
    erasure_id: str = key("e", LABEL, default="")


class AcquireLease(Message):
    KIND: ClassVar[str] = "lease"
    stream: str = key("s", NAME)
    start: int | str = key("o", one_of(uint(), text(16)))
    ttl_ms: int = key("t", uint())
    holder: str = key("h", LABEL, default="")
    incarnation: str | None = key("x", LABEL, default=None)
    for_export: bool | None = key("e", BOOL, default=None)


class RenewLease(Message):
    """Extends a lease and reports the progress of a read in `parts` parts. `part` is a part that
    has ended; the lease ends with the last part. `begun` is a part that begins. `stopped` is True
    if the part ended before its last record."""

    KIND: ClassVar[str] = "renew"
    REPEATABLE: ClassVar[bool] = True
    stream: str = key("s", NAME)
    lease_id: str = key("l", LABEL)
    ttl_ms: int = key("t", uint())
    low: int | None = key("o", uint(), default=None)
    part: int | None = key("p", uint(), default=None)
    parts: int | None = key("n", uint(), default=None)
    begun: int | None = key("g", uint(), default=None)
    stopped: bool | None = key("e", BOOL, default=None)


class ReleaseLease(Message):
    KIND: ClassVar[str] = "release"
    REPEATABLE: ClassVar[bool] = True
    stream: str = key("s", NAME)
    lease_id: str = key("l", LABEL)


class ListLeases(Message):
    KIND: ClassVar[str] = "leases"
    REPEATABLE: ClassVar[bool] = True
    stream: str = key("s", NAME)


class StreamsFor(Message):
    KIND: ClassVar[str] = "streamsfor"
    REPEATABLE: ClassVar[bool] = True
    subject: str = key("u", text(4096))


class ListExtents(Message):
    """Asks for the sizes of consecutive ranges of offsets from `start` on, each of about
    `step_bytes`.

    The other fields describe a reader that wants only records of these times, on this subject and
    with this key. The answer may give the size 0 to pieces without such records.
    """

    KIND: ClassVar[str] = "extents"
    REPEATABLE: ClassVar[bool] = True
    stream: str = key("s", NAME)
    start: int = key("o", uint())
    step_bytes: int = key("z", uint())
    not_before_ns: int | None = key("fb", uint(), default=None)
    not_after_ns: int | None = key("fa", uint(), default=None)
    subject: str | None = key("fs", text(1024), default=None)
    record_key: bytes | None = key("fk", raw(0, 65_536), default=None)


class Metadata(Message):
    KIND: ClassVar[str] = "metadata"
    REPEATABLE: ClassVar[bool] = True


# --- answers --------------------------------------------------------------------


class Updated(Message):
    """Answer to update. Each entry of `differences` has `setting`, `existing` and `requested`."""

    KIND: ClassVar[str] = "updated"
    stream: dict[str, Any] = key("d", MAP)
    differences: list[dict[str, Any]] = key("c", array_of(MAP, 256), default_factory=list)
    removal: dict[str, Any] = key("r", MAP, default_factory=dict)
    dry_run: bool = key("n", BOOL, default=False)


class LeaseAnswer(Message):
    """Answer to lease and renew."""

    KIND: ClassVar[str] = "leased"
    lease: dict[str, Any] = key("d", MAP)

    @property
    def info(self) -> LeaseInfo:
        return LeaseInfo.from_wire(self.lease)


class LeasesAnswer(Message):
    """Answer to leases."""

    KIND: ClassVar[str] = "held"
    leases: list[dict[str, Any]] = key("d", array_of(MAP, _MAX_LEASES))

    @property
    def infos(self) -> list[LeaseInfo]:
        return [LeaseInfo.from_wire(one) for one in self.leases]


class ExtentsAnswer(Message):
    """Answer to extents. `offsets` are the borders of the pieces, one more than `sizes`. With
    `selects`, a size of 0 means that the piece contains no wanted record, and the pieces may end
    early."""

    KIND: ClassVar[str] = "measured"
    offsets: list[int] = key("o", array_of(uint(), MAX_EXTENTS + 1))
    sizes: list[int] = key("z", array_of(uint(), MAX_EXTENTS))
    selects: bool | None = key("q", BOOL, default=None)

    @property
    def extents(self) -> list[StreamExtent]:
        pairs = zip(pairwise(self.offsets), self.sizes, strict=False)
        return [StreamExtent(first, following, size) for (first, following), size in pairs]


class Erased(Message):
    """Answer to erase. `count` is the number of records that are hidden now, or would be hidden.

    These records lie in `range_count` ranges without other records in between, from `first_offset`
    to `last_offset`; both are None if there is no record. Only records below `end_offset`, the high
    watermark at the start of the search, were examined. `subjects` are some of their subjects, if
    the caller may read them. `unreadable` are the borders of ranges whose records cannot be read;
    these records are not erased.
    """

    KIND: ClassVar[str] = "erased"
    count: int = key("c", uint())
    erasure_id: str = key("e", LABEL, default="")
    dry_run: bool = key("d", BOOL, default=False)
    unreadable: list[int] = key("u", array_of(uint(), 2 * MAX_ERASED_RANGES), default_factory=list)
    first_offset: int | None = key("f", uint(), default=None)
    last_offset: int | None = key("l", uint(), default=None)
    range_count: int = key("n", uint(), default=0)
    end_offset: int = key("h", uint(), default=0)
    subjects: list[str] = key("j", array_of(text(4096), MAX_SHOWN_SUBJECTS), default_factory=list)

    @property
    def unreadable_ranges(self) -> list[tuple[int, int]]:
        return list(zip(self.unreadable[::2], self.unreadable[1::2], strict=False))


class ErasuresAnswer(Message):
    """Answer to erasures: at most the newest 1000 erasures, the newest first. `total` is the number
    of erasures in the list."""

    KIND: ClassVar[str] = "erasurelist"
    erasures: list[dict[str, Any]] = key("d", array_of(MAP, MAX_ERASURES))
    total: int = key("n", uint())

    @property
    def infos(self) -> list[ErasureInfo]:
        return [ErasureInfo.from_wire(one) for one in self.erasures]


class ErasedOffsetsAnswer(Message):
    """Answer to erasedoffsets: at most about 4 MiB of bitmaps. `newest` is the id of the newest
    erasure of the stream, empty if there is none; while records of a listed erasure are still
    shown, more text follows. `bitmaps` are Roaring bitmaps in the portable format, whose
    bits are relative to the first offset of the part with the number at the same place in `parts`.
    `next_part` is the number to ask for next, or None at the end. `unknown` is the number of
    records that were erased, but whose offsets the daemon does not have any more. `is_listed` is
    False if the daemon's list does not have the erasure `after` of the request."""

    KIND: ClassVar[str] = "erasedset"
    newest: str = key("e", LABEL)
    parts: list[int] = key("p", array_of(uint(), MAX_ERASED_PARTS), default_factory=list)
    bitmaps: list[bytes] = key(
        "m", array_of(raw(0, 4 * 1024 * 1024), MAX_ERASED_PARTS), default_factory=list
    )
    next_part: int | None = key("n", uint(), default=None)
    unknown: int = key("u", uint(), default=0)
    is_listed: bool = key("l", BOOL, default=True)


class ProofAnswer(Message):
    """Answer to prove. `files` are the files with a finding (`ProvenFile`), at most 1000."""

    KIND: ClassVar[str] = "proof"
    count: int = key("c", uint())
    found: int = key("f", uint())
    file_count: int = key("n", uint())
    size_bytes: int = key("z", uint())
    files: list[dict[str, Any]] = key("d", array_of(MAP, MAX_ERASURES))

    @property
    def proof(self) -> ErasureProof:
        files = [ProvenFile.from_wire(one) for one in self.files]
        return ErasureProof(self.count, self.found, self.file_count, self.size_bytes, files)


class DaemonAnswer(Message):
    """Answer to metadata."""

    KIND: ClassVar[str] = "daemon"
    daemon: dict[str, Any] = key("d", MAP)

    @property
    def info(self) -> DaemonInfo:
        return DaemonInfo.from_wire(self.daemon)


class ErasureProof(NamedTuple):
    """Result of a search for erased records in the files of a stream. `records` is the number of
    erased records that the daemon searched for, and `found` is the number of these records that are
    still in a file. The daemon searched `file_count` files with a total size of `size_bytes`.
    `files` are the files with a finding."""

    records: int
    found: int
    file_count: int
    size_bytes: int
    files: list[ProvenFile]

    @property
    def is_clean(self) -> bool:
        """True if no file has one of the records, and every file could be parsed."""
        return not self.files


class ErasedOffsets(NamedTuple):
    """The offsets of all records of a stream that were erased until now. `newest` is for the
    next call: the id of the newest erasure, empty if there is none, and more text while an erasure
    runs or after it was interrupted. `unknown` is the number of erased records whose offsets
    the daemon no longer has. `is_listed` is False if the daemon no longer has the list of the
    earlier call, for example after the restoration of a backup: erasures may be missing.

    `bitmaps` maps a number to a Roaring bitmap in the portable format. A bit that is set means the
    offset 2^24 times the number, plus the position of the bit.
    """

    newest: str
    bitmaps: dict[int, bytes]
    unknown: int
    is_listed: bool = True


class StreamExtent(NamedTuple):
    """Approximate size of the records [first_offset, next_offset) in the log."""

    first_offset: int
    next_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class StreamUpdate:
    """Result of an update. With `dry_run`, this is the result that the update would have.

    Each entry of `differences` has `setting`, `existing` and `requested`. `removal` describes the
    data that retention removes after the update, or is None.
    """

    info: StreamInfo
    differences: list[dict[str, Any]]
    removal: Removal | None
    dry_run: bool

    @classmethod
    def from_answer(cls, answer: Updated) -> StreamUpdate:
        removal = Removal.from_wire(answer.removal) if answer.removal else None
        info = StreamInfo.from_wire(answer.stream)
        return cls(info, answer.differences, removal, answer.dry_run)

    def to_answer(self) -> Updated:
        removal = {} if self.removal is None else self.removal.to_wire()
        return Updated(self.info.to_wire(), self.differences, removal, self.dry_run)


REQUESTS: tuple[type[Message], ...] = (
    UpdateStream,
    PauseStream,
    ResumeStream,
    SetReadOnly,
    TruncateStream,
    EraseRecords,
    ListErasures,
    ProveErasure,
    ListErasedOffsets,
    RemoveErased,
    AcquireLease,
    RenewLease,
    ReleaseLease,
    ListLeases,
    StreamsFor,
    ListExtents,
    Metadata,
)

ANSWERS: tuple[type[Message], ...] = (
    Updated,
    LeaseAnswer,
    LeasesAnswer,
    ExtentsAnswer,
    Erased,
    ErasuresAnswer,
    ErasedOffsetsAnswer,
    ProofAnswer,
    DaemonAnswer,
)
