"""The subject index of one sealed segment: it locates the records on each subject.

If every batch has some records on a subject, a read of that subject would have to examine every
batch. The index groups the records on each subject into runs. A run is a record batch of these
records, in the form in which a read returns the batch, but without the bytes of the values. A read
gets the values from the segment; the checksum of the batch includes the values. The file is beside
the segment:

     0  4  "LLSX"
     4  4  version 1                        u32
     8  4  number of subjects               u32, 0: no index
    12  4  CRC-32C of the log's lineage     u32
    16  8  size of the segment in bytes     u64
    24  8  offset after the segment         u64
    32  4  number of runs                   u32
    36  4  bytes of the names               u32
    40  4  size of this file                u32
    44  4  CRC-32C of bytes 0 to 43, of the entries and the names  u32
    48     one entry of 16 bytes for each subject, one of 32 bytes for each run, the names, and the
           runs

The entry of a subject: start of its name among the names u32, bytes of its name u32, number of its
first run u32, and 1 if the name is escaped u32. The entry of a run: its first offset - base u32,
its last offset - base u32, its position in this file u32, its bytes in this file u32, bytes of its
head u32, number of its records u32, length of its batch u32, and CRC-32C of its bytes u32. The
bytes of a run in this file are compressed by zlib. These bytes contain the head of the run's batch
(all bytes before the values) and the position u32 of each value in the segment.

Subjects ascend by the bytes of their names as stored; the runs of each subject ascend by offset.

An index is derived from its segment and may be missing, like a sketch. An index without subjects
means that the segment has compressed batches, or that an index would save too little time for its
size.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from itertools import chain, islice
from pathlib import Path

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from liftlog.log.files.filesystem import Buffer, FileSystem
from liftlog.log.files.manifest import SegmentEntry
from liftlog.log.files.unreadable import is_unreadable
from liftlog.log.segment.derived import history_check, is_named, subject_index_path
from liftlog.records.columns.heads import WantedSubjects

RUN_BYTES = 64 * 1024
"""Maximum size of a run in bytes. A run is larger only if a single batch has more bytes on its
subject."""

_MOST_NAMES = 1000
"""Maximum number of names to compare with patterns in one read."""

_MAGIC = b"LLSX"
_VERSION = 1
_HEAD = struct.Struct("<4sIIIQQIIII")
HEAD_BYTES = _HEAD.size
SUBJECT = np.dtype([("at", "<u4"), ("bytes", "<u4"), ("run", "<u4"), ("escaped", "<u4")])
RUN = np.dtype(
    [
        ("first", "<u4"),
        ("last", "<u4"),
        ("position", "<u4"),
        ("bytes", "<u4"),
        ("head_bytes", "<u4"),
        ("records", "<u4"),
        ("length", "<u4"),
        ("check", "<u4"),
    ]
)


class SubjectIndex:
    """The entries of a subject index that was read and checked."""

    def __init__(
        self,
        about: tuple[SegmentEntry, str],
        subjects: NDArray[np.void],
        runs: NDArray[np.void],
        names: memoryview,
    ) -> None:
        self.about = about
        """The state of the segment, and the lineage of its log."""
        self.runs = runs
        """One RUN for each run of all subjects."""
        self.size_bytes = subjects.nbytes + runs.nbytes + len(names)
        self._subjects = subjects
        self._names = names

    def __len__(self) -> int:
        """Number of subjects."""
        return len(self._subjects)

    def runs_of(self, wanted: WantedSubjects, most: int) -> list[tuple[int, int]] | None:
        """Return, for each wanted subject, the number of its first run and the number after its
        last run. Returns None if more than `most` subjects match, or if too many names must be
        compared."""
        numbers: Iterator[int]
        if wanted.literals is not None and len(wanted.literals) <= _MOST_NAMES:
            names = filter(wanted.matches, wanted.literals) if wanted.matches else wanted.literals
            numbers = chain.from_iterable(map(self._named, names))
        elif len(self) <= _MOST_NAMES:
            numbers = (i for i in range(len(self)) if wanted.hold(self._name(i)))
        else:
            return None
        found = list(islice(numbers, most + 1))
        if len(found) > most:
            return None
        return [(self._first_run(i), self._first_run(i + 1)) for i in found]

    def _first_run(self, number: int) -> int:
        return int(self._subjects["run"][number]) if number < len(self) else len(self.runs)

    def _name(self, number: int) -> bytes:
        at, size, *_ = self._subjects[number].tolist()
        return bytes(self._names[at : at + size])

    def _named(self, name: bytes) -> list[int]:
        """Return the numbers of the subjects with this name: at most two, because an escaped and an
        unescaped subject can have the same name."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self._name(middle) < name:
                low = middle + 1
            else:
                high = middle
        return [i for i in range(low, min(low + 2, len(self))) if self._name(i) == name]


NO_RUNS = np.empty(0, RUN)


def index_parts(
    segment: SegmentEntry,
    lineage: str,
    subjects: Sequence[tuple[bytes, bool, int]],
    runs: NDArray[np.void],
    content: Sequence[Buffer],
) -> list[Buffer]:
    """Return the content of the index file, in parts.

    Each of the `subjects` is a tuple of a name, a flag that is True if the name is escaped, and the
    number of the subject's first run. `runs` are the entries of the runs, with positions in
    `content`.
    """
    sizes = [len(name) for name, *_ in subjects]
    names = b"".join([name for name, *_ in subjects])
    table = np.zeros(len(subjects), SUBJECT)
    table["bytes"] = sizes
    table["at"] = np.cumsum(sizes) - sizes
    table["escaped"] = [escaped for _, escaped, _ in subjects]
    table["run"] = [first for *_, first in subjects]
    entries = runs.copy()
    begin = HEAD_BYTES + table.nbytes + entries.nbytes + len(names)
    entries["position"] += begin
    tables = table.tobytes() + entries.tobytes() + names
    about = (history_check(segment, lineage), segment.size_bytes, segment.next_offset)
    of_file = (len(runs), len(names), begin + sum(map(len, content)))
    head = _HEAD.pack(_MAGIC, _VERSION, len(subjects), *about, *of_file, 0)[:-4]
    check = struct.pack("<I", crc32c(tables, crc32c(head)))
    return [head, check, tables, *content]


def is_indexed(fs: FileSystem, log_path: Path, segment: SegmentEntry, lineage: str) -> bool:
    """Return True if a complete index file of this segment exists. It may have no subjects."""
    path = subject_index_path(log_path)
    with suppress(OSError), closing(fs.open(path, writable=False)) as file:
        return _is_whole(file.pread(HEAD_BYTES, 0), file.size(), segment, lineage)
    return False


def _is_whole(head: bytes, file_size: int, segment: SegmentEntry, lineage: str) -> bool:
    return (
        len(head) == HEAD_BYTES
        and is_named(head, (_MAGIC, _VERSION), segment, lineage)
        and _HEAD.unpack(head)[-2] == file_size
    )


def read_subject_index(
    fs: FileSystem, log_path: Path, segment: SegmentEntry, lineage: str
) -> SubjectIndex | None:
    """Read the entries of an index file. Returns None if the file has no subjects, is missing or
    damaged, or belongs to another state of the segment. Raises OSError for transient errors."""
    path = subject_index_path(log_path)
    try:
        if not fs.exists(path):
            return None
        with closing(fs.open(path, writable=False)) as file:
            head = file.pread(HEAD_BYTES, 0)
            if not _is_whole(head, file.size(), segment, lineage):
                return None
            subject_count, *_, run_count, name_bytes, _, check = _HEAD.unpack(head)[2:]
            ends = np.cumsum(
                (subject_count * SUBJECT.itemsize, run_count * RUN.itemsize, name_bytes)
            ).tolist()
            if not subject_count or HEAD_BYTES + ends[-1] > file.size():
                return None
            tables = file.pread(ends[-1], HEAD_BYTES)
    except OSError as error:
        if isinstance(error, FileNotFoundError) or is_unreadable(error):
            return None
        raise
    if crc32c(tables, crc32c(head[:-4])) != check:
        return None
    subjects = np.frombuffer(tables, SUBJECT, subject_count)
    firsts = subjects["run"]
    if firsts[-1] > run_count or (firsts[1:] < firsts[:-1]).any():
        return None  # checked, because a checksum does not prove that the writer was correct
    return SubjectIndex(
        (segment, lineage),
        subjects,
        np.frombuffer(tables, RUN, run_count, ends[0]),
        memoryview(tables)[ends[1] :],
    )
