"""The list of the erasures of a stream: who erased what, when and why.

The file `erasures` has one line for each erasure, and only grows:

    crc32c=<8 lower-case hex digits> <a JSON object in UTF-8>\\n

An entry is durable before its records are hidden, so an erasure that a stop has interrupted can be
in the list. A line whose checksum is wrong (a torn write, or bit rot) does not count.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from crc32c import crc32c

from liftlog.log.files.filesystem import FileSystem, write_all
from liftlog.log.files.unreadable import read_zeroed

ERASURES_NAME = "erasures"


@dataclass(frozen=True, slots=True)
class Erasure:
    """One erasure. `ranges` are the requested offsets, each [first, next); `count` is the number of
    records that were hidden. `selector` is a hash of the filter, empty without one.

    `offsets` are the hidden records (`ErasedSet.to_plain`). It is empty if it would be too large,
    and in lines of older versions. With `now`, their bytes are to be removed at once.
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


def append_erasure(fs: FileSystem, directory: Path, one: Erasure) -> None:
    """Add an erasure to the list; durable on return. Raises OSError."""
    path = directory / ERASURES_NAME
    is_new = not fs.exists(path)
    file = fs.open(path, create=is_new)
    try:
        # After a torn write, the next line begins in a new line.
        size = file.size()
        last = file.pread(1, size - 1) if size else b"\n"
        write_all(file, [b"" if last == b"\n" else b"\n", _line(one)], size)
        file.fdatasync()
    finally:
        file.close()
    if is_new:
        fs.fsync_directory(directory)


def _line(one: Erasure) -> bytes:
    text = json.dumps(asdict(one), separators=(",", ":"), sort_keys=True).encode()
    return b"crc32c=%08x %b\n" % (crc32c(text), text)


def read_erasures(fs: FileSystem, directory: Path) -> Sequence[Erasure]:
    """Return the erasures of a stream, oldest first. Raises OSError."""
    path = directory / ERASURES_NAME
    if not fs.exists(path):
        return ()
    file = fs.open(path, writable=False)
    try:
        raw = read_zeroed(file, file.size(), 0)
    finally:
        file.close()
    found = []
    for line in raw.split(b"\n"):
        check, _, text = line.partition(b" ")
        if check != b"crc32c=%08x" % crc32c(text) or not text:
            continue
        content = json.loads(text)
        for name in ("ranges", "offsets"):
            content[name] = tuple([tuple(pair) for pair in content.get(name, ())])
        found.append(Erasure(**content))
    return found
