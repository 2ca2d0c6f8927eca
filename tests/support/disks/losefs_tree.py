"""Files and directories that remember what the disk holds, and forget the rest at a power cut.

Pure: no FUSE here. A file has its volatile bytes (the page cache), its stable bytes (the disk)
and the changes between; a directory likewise. `after_power_cut` builds what a machine finds when
it comes up again: of each 4 KiB page any state it had since the last fsync, sometimes torn at a
512-byte sector, of each un-synced change of a directory all or nothing.
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
        self.bad_pages: set[int] = set()  # the disk does not give them; a power cut changes nothing

    def is_bad(self, position: int, length: int) -> bool:
        """Whether a page of these bytes cannot be read."""
        pages = range(position // PAGE, -(-(position + length) // PAGE))
        return not self.bad_pages.isdisjoint(pages)

    def write(self, position: int, raw: bytes) -> None:
        """A page that is written whole gets another place on the disk, and can be read again."""
        whole = range(-(-position // PAGE), (position + len(raw)) // PAGE)
        self.bad_pages.difference_update(whole)
        if position > len(self.data):
            self.data.extend(bytes(position - len(self.data)))
        self.data[position : position + len(raw)] = raw
        self.pending.append(Change(position, raw, len(self.data)))

    def resize(self, size: int) -> None:
        """Longer (zeros) or shorter."""
        old = len(self.data)
        self.bad_pages = {page for page in self.bad_pages if page * PAGE < size}
        if size < old:
            del self.data[size:]
            # Whatever grows there again is zeros, also where the page reaches the disk.
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
        """The dirty pages count as clean from now on, though they never reached the disk."""
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
            if rng.random() < 0.3:  # torn: some sectors are of another moment
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
        """Set or (None) remove names: one change, which reaches the disk as a whole."""
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
            if id(node) not in done:  # a file may have two names for a moment
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
