"""Files and directories that distinguish durable from volatile state, and forget the volatile state
at a power cut.

Pure, without FUSE. A file has volatile bytes (the page cache), durable bytes (the disk), and the
changes between them; a directory likewise. `after_power_cut` builds the state at the next start.
Each page of 4 KiB has any of its states since the last fsync, and is sometimes torn at a 512-byte
sector. Each unsynced change of a directory is kept or lost as a whole.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Literal, NamedTuple

Keep = Literal["none", "all", "some"]

PAGE = 4096
SECTOR = 512


class Change(NamedTuple):
    position: int
    raw: bytes
    size_after: int


_inodes = itertools.count(2)


class LoseFile:
    def __init__(self, stable: bytes = b"", mode: int = 0o644) -> None:
        self.inode = next(_inodes)
        self.data = bytearray(stable)
        self.stable = bytearray(stable)
        self.pending: list[Change] = []
        self.mode = mode
        self.bad_pages: set[int] = set()  # unreadable, even after a power cut

    def is_bad(self, position: int, length: int) -> bool:
        """Return True if a page of these bytes cannot be read."""
        pages = range(position // PAGE, -(-(position + length) // PAGE))
        return not self.bad_pages.isdisjoint(pages)

    def write(self, position: int, raw: bytes) -> None:
        """Write bytes. A page that is written completely gets another place on the disk, and can be
        read again."""
        whole = range(-(-position // PAGE), (position + len(raw)) // PAGE)
        self.bad_pages.difference_update(whole)
        if position > len(self.data):
            self.data.extend(bytes(position - len(self.data)))
        self.data[position : position + len(raw)] = raw
        self.pending.append(Change(position, raw, len(self.data)))

    def resize(self, size: int) -> None:
        """Make the file longer (zeros) or shorter."""
        old = len(self.data)
        self.bad_pages = {page for page in self.bad_pages if page * PAGE < size}
        if size < old:
            del self.data[size:]
            # If the file grows again, these bytes are zeros, also when the page is written to the
            # disk.
            self.pending.append(Change(size, bytes(old - size), size))
        elif size > old:
            self.data.extend(bytes(size - old))
            self.pending.append(Change(size, b"", size))

    def sync(self) -> None:
        for position, raw, size in self.pending:
            _grow(self.stable, position + len(raw))
            self.stable[position : position + len(raw)] = raw
            _set_size(self.stable, size)
        self.pending.clear()

    def fail_to_sync(self) -> None:
        """Mark the dirty pages as clean, although they were not written to the disk."""
        self.pending.clear()

    def after_power_cut(self, keep: Keep, rng: random.Random) -> LoseFile:
        found = self._after_power_cut(keep, rng)
        found.bad_pages = {page for page in self.bad_pages if page * PAGE < len(found.data)}
        found.inode = self.inode
        return found

    def _after_power_cut(self, keep: Keep, rng: random.Random) -> LoseFile:
        if keep == "all":
            return LoseFile(bytes(self.data), self.mode)
        if keep == "none" or not self.pending:
            return LoseFile(bytes(self.stable), self.mode)
        raw = bytearray(self.stable)
        for page, changes in self._dirty_pages().items():
            reached = changes[: rng.randint(0, len(changes))]
            content = self._page(page, reached)
            if rng.random() < 0.3:  # torn: some sectors have another state
                other = self._page(page, changes[: rng.randint(0, len(changes))])
                cut = rng.randrange(PAGE // SECTOR + 1) * SECTOR
                content = content[:cut] + other[cut:]
            _grow(raw, page * PAGE + PAGE)
            raw[page * PAGE : page * PAGE + PAGE] = content
        sizes = [len(self.stable), *(change.size_after for change in self.pending)]
        _set_size(raw, rng.choice(sizes))
        return LoseFile(bytes(raw), self.mode)

    def _dirty_pages(self) -> dict[int, list[Change]]:
        pages: dict[int, list[Change]] = {}
        for change in self.pending:
            end = change.position + len(change.raw)
            for page in range(change.position // PAGE, -(-end // PAGE)):
                pages.setdefault(page, []).append(change)
        return pages

    def _page(self, page: int, changes: list[Change]) -> bytes:
        start = page * PAGE
        content = bytearray(self.stable[start : start + PAGE].ljust(PAGE, b"\0"))
        for position, raw, _ in changes:
            low = max(position, start)
            high = min(position + len(raw), start + PAGE)
            content[low - start : high - start] = raw[low - position : high - position]
        return bytes(content)


class LoseDirectory:
    def __init__(self, mode: int = 0o755) -> None:
        self.inode = next(_inodes)
        self.entries: dict[str, Node] = {}
        self.stable: dict[str, Node] = {}
        self.pending: list[dict[str, Node | None]] = []
        self.mode = mode

    def change(self, names: dict[str, Node | None]) -> None:
        """Set names, or remove them (None), as one change that reaches the disk as a whole."""
        _apply(self.entries, names)
        self.pending.append(names)

    def sync(self) -> None:
        self.stable = dict(self.entries)
        self.pending.clear()

    def fail_to_sync(self) -> None:
        self.pending.clear()

    def after_power_cut(
        self, keep: Keep, rng: random.Random, done: dict[int, Node] | None = None
    ) -> LoseDirectory:
        done = {} if done is None else done
        names = dict(self.stable)
        for change in self.pending:
            if keep == "all" or (keep == "some" and rng.random() < 0.5):
                _apply(names, change)
        found = LoseDirectory(self.mode)
        found.inode = self.inode
        for name, node in names.items():
            if id(node) not in done:  # a file may temporarily have two names
                done[id(node)] = (
                    node.after_power_cut(keep, rng)
                    if isinstance(node, LoseFile)
                    else node.after_power_cut(keep, rng, done)
                )
            found.entries[name] = done[id(node)]
        found.stable = dict(found.entries)
        return found

    def files(self) -> Iterator[LoseFile]:
        for node in self.entries.values():
            if isinstance(node, LoseFile):
                yield node
            else:
                yield from node.files()


Node = LoseFile | LoseDirectory


def _grow(raw: bytearray, size: int) -> None:
    if size > len(raw):
        raw.extend(bytes(size - len(raw)))


def _set_size(raw: bytearray, size: int) -> None:
    _grow(raw, size)
    del raw[size:]


def _apply(names: dict[str, Node], changes: dict[str, Node | None]) -> None:
    for name, node in changes.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node
