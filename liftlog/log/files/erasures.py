"""The list of the erasures of a stream: who erased what, when and why.

The file `erasures` has one line for each erasure:

    crc32c=<8 lower-case hex digits> <a JSON object in UTF-8>\\n

An entry is durable before its records are hidden, so the list can contain an erasure that was
interrupted by a stop. When the records are hidden, a line `{"done": <id>}` follows, which is not
synced. A line `{"now": <id>}` says that the bytes of its records are to be removed at once. A line
whose checksum is wrong (a torn write, or bit rot) does not count. When the file becomes too large,
it is written again, and its oldest entries lose their offsets. If these entries are still too
large, all entries of the same principal and reason become one entry.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from crc32c import crc32c

from liftlog.log.files.checkpoint_file import TEMPORARY_SUFFIX
from liftlog.log.files.filesystem import FileSystem, write_all
from liftlog.log.files.unreadable import read_zeroed

ERASURES_NAME = "erasures"
MOST_BYTES = 32 * 1024 * 1024
"""Size in bytes at which the file is written again. Afterwards it has at most about 5/8 of this
size."""
STEP_LINES = 1000
"""Maximum number of lines that are parsed in one step."""
STEP_BYTES = 1024 * 1024
"""Approximate size of the lines that are parsed in one step, in bytes."""


@dataclass(frozen=True, slots=True)
class Erasure:
    """One erasure. `ranges` are the requested offsets, each [first, next); `count` is the number of
    records that were hidden. `selector` is a hash of the filter, empty without one.

    `offsets` are the hidden records (`ErasedSet.to_plain`). It is empty if it would be too large,
    in lines of older versions, and for the oldest entries of a long list. Such an old entry can
    stand for several erasures. With `now`, the bytes of the records are to be removed at once.
    `done` is False if it is not known whether the records were hidden.
    """

    erasure_id: str
    time_ns: int
    principal: str
    reason: str
    count: int
    ranges: tuple[tuple[int, int], ...]
    selector: str = ""
    offsets: tuple[tuple[int, str], ...] = ()
    now: bool = False
    done: bool = False


def append_erasure(fs: FileSystem, directory: Path, one: Erasure) -> None:
    """Add an erasure to the list; durable on return. Raises OSError."""
    size = _append(fs, directory, _content(one), sync=True)
    if size > MOST_BYTES:
        _shorten(fs, directory)


def note_done(fs: FileSystem, directory: Path, erasure_id: str) -> None:
    """Note that the records of an erasure are hidden. Not synced. Raises OSError."""
    _append(fs, directory, {"done": erasure_id}, sync=False)


def note_now(fs: FileSystem, directory: Path, erasure_ids: Iterable[str]) -> None:
    """Note that the bytes of some erasures are to be removed at once; durable on return. Raises
    OSError."""
    _append(fs, directory, *[{"now": one} for one in erasure_ids], sync=True)


def _append(fs: FileSystem, directory: Path, *contents: dict[str, Any], sync: bool) -> int:
    """Add lines; returns the size of the file. Only the writer of the log may call it: two calls at
    the same time would overwrite each other's lines."""
    path = directory / ERASURES_NAME
    is_new = not fs.exists(path)
    file = fs.open(path, create=is_new)
    try:
        # After a torn write, the next line begins in a new line.
        size = file.size()
        last = file.pread(1, size - 1) if size else b"\n"
        line = b"".join([_line(one) for one in contents])
        write_all(file, [b"" if last == b"\n" else b"\n", line], size)
        if sync:
            file.fdatasync()
    finally:
        file.close()
    if is_new:
        fs.fsync_directory(directory)
    return size + len(line)


def _shorten(fs: FileSystem, directory: Path) -> None:
    """Write the list again, with a short form of the oldest entries. The newer lines, which are
    most of the list, are copied."""
    path = directory / ERASURES_NAME
    lines = _read(fs, path).split(b"\n")
    room, at = MOST_BYTES // 2, len(lines)
    while at and len(lines[at - 1]) < room:
        at -= 1
        room -= len(lines[at]) + 1
    oldest = [_line(_content(one)) for one in _in_short(_all_of(ErasureReader(lines[:at])))]
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    file = fs.open(temporary, create=True)
    try:
        write_all(file, [b"".join(oldest) + b"\n".join(lines[at:])], 0)
        file.fdatasync()
    finally:
        file.close()
    fs.rename(temporary, path)
    fs.fsync_directory(directory)


def _in_short(entries: Sequence[Erasure]) -> Sequence[Erasure]:
    """Return entries without their offsets. If they are still too many, return one entry for each
    principal and reason, or one for all."""
    if _fit(entries):
        return [replace(one, offsets=()) for one in entries]
    found = _joined(entries, lambda one: (one.principal, one.reason))
    return found if _fit(found) else _joined(found, lambda _: ())


def _fit(entries: Sequence[Erasure]) -> bool:
    """Return True if the lines of these entries without offsets take at most about an eighth of the
    list."""
    texts = sum([len(one.principal) + len(one.reason) for one in entries])
    ranges = sum([len(one.ranges) for one in entries])
    return 200 * len(entries) + texts + 24 * ranges <= MOST_BYTES // 8


def _joined(entries: Iterable[Erasure], kind: Callable[[Erasure], Hashable]) -> list[Erasure]:
    """Join the entries of the same kind into one entry: the newest entry, with the total number of
    records, and one range that covers all ranges. Entries that are not done stay apart: their
    records may be shown, or count twice."""
    kinds: dict[Hashable, list[Erasure]] = {}
    for one in entries:
        kinds.setdefault((kind(one), one.done), []).append(one)
    found: list[Erasure] = []
    for some in kinds.values():
        borders = [border for one in some for pair in one.ranges for border in pair]
        ranges = ((min(borders), max(borders)),) if borders else ()
        count = sum([one.count for one in some])
        found.append(
            replace(some[-1], count=count, ranges=ranges, offsets=(), selector="", now=False)
        )
    return sorted(found, key=lambda one: one.time_ns)


def _content(one: Erasure) -> dict[str, Any]:
    content = asdict(one)
    if not one.done:
        del content["done"]
    return content


def _line(content: dict[str, Any]) -> bytes:
    text = json.dumps(content, separators=(",", ":"), sort_keys=True).encode()
    return b"crc32c=%08x %b\n" % (crc32c(text), text)


class ErasureReader:
    """Reads the list of the erasures of a stream in steps, because a long list takes seconds. Used
    by one thread at a time."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = iter(lines)
        self._found: dict[str, Erasure] = {}

    @classmethod
    def open(cls, fs: FileSystem, directory: Path) -> ErasureReader:
        """Read the file, if it exists. Raises OSError."""
        path = directory / ERASURES_NAME
        return cls(_read(fs, path).split(b"\n") if fs.exists(path) else ())

    @property
    def entries(self) -> Sequence[Erasure]:
        """The erasures of the lines so far, oldest first."""
        return list(self._found.values())

    def step(self, count: int) -> bool:
        """Parse at most `count` further lines, of about STEP_BYTES. Returns False at the end."""
        size = 0
        for line in islice(self._lines, count):
            for content in _parsed([line]):
                self._add(content)
            size += len(line)
            count -= 1
            if size >= STEP_BYTES:
                return True
        return count == 0

    def _add(self, content: dict[str, Any]) -> None:
        if len(content) == 1:
            ((name, erasure_id),) = content.items()
            if erasure_id in self._found:
                one = self._found[erasure_id]
                self._found[erasure_id] = replace(
                    one, done=one.done or name == "done", now=one.now or name == "now"
                )
            return
        for name in ("ranges", "offsets"):
            content[name] = tuple([tuple(pair) for pair in content.get(name, ())])
        self._found[content["erasure_id"]] = Erasure(**content)


def read_erasures(fs: FileSystem, directory: Path) -> Sequence[Erasure]:
    """Return the erasures of a stream, oldest first. Raises OSError."""
    return _all_of(ErasureReader.open(fs, directory))


def newest_erasure(fs: FileSystem, directory: Path) -> str:
    """Return the id of the newest erasure of a stream; empty if there is none. Raises OSError."""
    path = directory / ERASURES_NAME
    lines = _read(fs, path).split(b"\n") if fs.exists(path) else []
    found = (one for one in _parsed(reversed(lines)) if len(one) > 1)
    return next((str(one["erasure_id"]) for one in found), "")


def _all_of(reader: ErasureReader) -> Sequence[Erasure]:
    while reader.step(STEP_LINES):
        pass
    return reader.entries


def _read(fs: FileSystem, path: Path) -> bytes:
    file = fs.open(path, writable=False)
    try:
        return read_zeroed(file, file.size(), 0)
    finally:
        file.close()


def _parsed(lines: Iterable[bytes]) -> Iterable[dict[str, Any]]:
    for line in lines:
        check, _, text = line.partition(b" ")
        if text and check == b"crc32c=%08x" % crc32c(text):
            yield json.loads(text)
