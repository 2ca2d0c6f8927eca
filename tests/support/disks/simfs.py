"""A file system in memory that forgets what was not synced: for tests of the storage.

Every file has the content of the page cache, the content of the disk, and the writes between the
two. Every directory has its entries, its durable entries, and the changes between the two.
`power_cut` builds a disk on which each unsynced write was kept, lost or torn, and each unsynced
change of a directory was kept or lost. `kill` keeps the page cache, as after a kill of the process.
Any operation can be made to fail, to write fewer bytes, or to be the last one before the machine
stops.
"""

from __future__ import annotations

import errno
import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from liftlog.log.files.filesystem import read_whole

PAGE = 4096
Keep = Literal["none", "all", "some", "last"]
"""The unsynced changes that reach the disk. `last`: only the last change of each directory."""


class MachineStopped(BaseException):
    """Raised by the operation at which the machine stops, and by all later operations."""


@dataclass
class Fault:
    """Fail the `countdown`-th matching operation, and then `times - 1` more."""

    operation: str
    error: int = errno.EIO
    path: str = ""
    countdown: int = 1
    times: int = 1
    short: int | None = None  # a write stops once after this number of bytes, without an error
    after: bool = False  # the operation takes effect and then fails

    def hits(self, operation: str, path: Path) -> bool:
        if operation != self.operation or self.path not in path.name or self.times == 0:
            return False
        self.countdown -= 1
        if self.countdown > 0:
            return False
        self.times -= 1
        return True


@dataclass
class Inode:
    data: bytearray = field(default_factory=bytearray)
    stable: bytes = b""
    pending: list[tuple[str, int, bytes]] = field(default_factory=list)
    bad_pages: set[int] = field(default_factory=set)  # they cannot be read

    def is_bad(self, position: int) -> bool:
        return position // PAGE in self.bad_pages

    def readable_end(self, position: int, end: int) -> int:
        """Return the end of a read from `position` to `end`."""
        bad = [page * PAGE for page in self.bad_pages if position < (page + 1) * PAGE]
        return max(min([end, *bad]), position)

    def heal(self, position: int, length: int) -> None:
        """Make pages readable that are written completely, because they get another place on the
        disk. Raises OSError for partly written bad pages, which the kernel has to read first."""
        touched = {one for one in self.bad_pages if position < (one + 1) * PAGE}
        touched = {one for one in touched if one * PAGE < position + length}
        for page in touched:
            whole = position <= page * PAGE and (page + 1) * PAGE <= position + length
            if not whole and page * PAGE < len(self.data):
                raise OSError(errno.EIO, "a part of an unreadable page")
        self.bad_pages -= touched

    def write(self, position: int, raw: bytes) -> None:
        _apply(self.data, "write", position, raw)
        self.pending.append(("write", position, raw))

    def resize(self, kind: str, size: int) -> None:
        _apply(self.data, kind, size, b"")
        self.pending.append((kind, size, b""))

    def sync(self) -> None:
        stable = bytearray(self.stable)
        for change in self.pending:
            _apply(stable, *change)
        self.stable = bytes(stable)
        self.pending.clear()

    def fail_to_sync(self) -> None:
        """Mark the dirty pages as clean, although they were not written to the disk."""
        self.pending.clear()

    def after_power_cut(self, keep: Keep, rng: random.Random) -> Inode:
        data = bytearray(self.stable)
        for kind, position, raw in self.pending:
            if keep in ("none", "last") or (keep == "some" and rng.random() < 0.3):
                continue
            if keep == "some" and kind == "write" and rng.random() < 0.5:
                # Torn: one part was written, and the other bytes are unchanged or zeros.
                cut = sorted((rng.randrange(len(raw) + 1), rng.randrange(len(raw) + 1)))
                if rng.random() < 0.7:
                    cut[0] = 0
                position, raw = position + cut[0], raw[cut[0] : cut[1]]
            _apply(data, kind, position, raw)
        return Inode(data, bytes(data), bad_pages=set(self.bad_pages))


@dataclass
class Directory:
    entries: dict[str, Inode | Directory] = field(default_factory=dict)
    stable: dict[str, Inode | Directory] = field(default_factory=dict)
    pending: list[dict[str, Inode | Directory | None]] = field(default_factory=list)

    def change(self, changes: dict[str, Inode | Directory | None]) -> None:
        _change(self.entries, changes)
        self.pending.append(changes)

    def sync(self) -> None:
        self.stable = dict(self.entries)
        self.pending.clear()

    def after_power_cut(self, keep: Keep, rng: random.Random, done: dict[int, Any]) -> Directory:
        names = dict(self.stable)
        pending = self.pending[-1:] if keep == "last" else self.pending
        for changes in pending:
            if keep in ("all", "last") or (keep == "some" and rng.random() < 0.5):
                _change(names, changes)
        found = Directory()
        for name, node in names.items():
            if id(node) not in done:  # a file may temporarily have two names
                done[id(node)] = (
                    node.after_power_cut(keep, rng)
                    if isinstance(node, Inode)
                    else node.after_power_cut(keep, rng, done)
                )
            found.entries[name] = done[id(node)]
        found.stable = dict(found.entries)
        return found


def page_at(position: int) -> range:
    """Return the bytes of the page that contains `position`."""
    start = position - position % PAGE
    return range(start, start + PAGE)


def _add_to_digest(found: hashlib.blake2b, directory: Directory, path: str) -> None:
    for name, node in sorted(directory.entries.items()):
        where = f"{path}/{name}"
        if isinstance(node, Directory):
            _add_to_digest(found, node, where)
        else:
            found.update(f"{where} {len(node.data)}\n".encode())
            found.update(node.data)


def _paths_below(directory: Directory, path: Path) -> list[Path]:
    found = []
    for name, node in directory.entries.items():
        found += _paths_below(node, path / name) if isinstance(node, Directory) else [path / name]
    return found


def _apply(data: bytearray, kind: str, position: int, raw: bytes) -> None:
    if kind == "write":
        data.extend(bytes(max(position - len(data), 0)))
        data[position : position + len(raw)] = raw
    elif kind == "truncate" and position < len(data):
        del data[position:]
    else:  # extended by truncate or allocate: zeros
        data.extend(bytes(max(position - len(data), 0)))


def _change(
    names: dict[str, Inode | Directory], changes: dict[str, Inode | Directory | None]
) -> None:
    for name, node in changes.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class SimFile:
    def __init__(self, fs: SimFileSystem, path: Path, inode: Inode) -> None:
        self._fs = fs
        self.path = path
        self.inode = inode
        self.closed = False
        fs.open_files += 1

    def fileno(self) -> int:
        raise AssertionError("simulated files have no descriptor; use pread")

    def pread(self, length: int, position: int) -> bytes:
        fault = self._fs.step("pread", self.path, counted=False)
        if fault is not None:
            raise OSError(fault.error, "injected")
        assert not self.closed
        return read_whole(self._read_once, self.size, length, position)

    def _read_once(self, length: int, position: int) -> bytes:
        """Read like Linux: up to the first bad page. Only a read that begins on a bad page raises
        an error."""
        inode = self.inode
        end = inode.readable_end(position, min(position + length, len(inode.data)))
        if end == position < len(inode.data):
            raise OSError(errno.EIO, "an unreadable sector")
        if self._fs.short_reads is not None:
            end = min(end, position + self._fs.short_reads.randint(1, max(end - position, 1)))
        return bytes(inode.data[position:end])

    def pwritev(self, buffers: Sequence[bytes | bytearray | memoryview], position: int) -> int:
        raw = b"".join(buffers)
        fault = self._fs.step("write", self.path)
        assert not self.closed
        if fault is not None:
            if fault.short is None:
                raise OSError(fault.error, "injected")
            raw = raw[: fault.short]
        room = self._fs.free_bytes
        if room is not None:
            growth = max(position + len(raw) - len(self.inode.data), 0)
            if self.path.name in self._fs.copy_on_write:
                growth = len(raw)
            if growth > room:
                raw = raw[: max(len(raw) - (growth - room), 0)]
                if not raw:
                    raise OSError(errno.ENOSPC, "no space left")
            self._fs.free_bytes = room - max(position + len(raw) - len(self.inode.data), 0)
        self.inode.heal(position, len(raw))
        self.inode.write(position, raw)
        return len(raw)

    def fdatasync(self) -> None:
        fault = self._fs.step("fsync", self.path)
        if fault is not None:
            self.inode.fail_to_sync()
            raise OSError(fault.error, "injected")
        self.inode.sync()

    def truncate(self, size: int) -> None:
        self._fs.raise_fault("truncate", self.path)
        if size % PAGE and size < len(self.inode.data) and self.inode.is_bad(size):
            raise OSError(errno.EIO, "a part of an unreadable page")
        self.inode.bad_pages = {one for one in self.inode.bad_pages if one * PAGE < size}
        self.inode.resize("truncate", size)

    def allocate(self, size: int) -> None:
        self._fs.raise_fault("allocate", self.path)
        if self._fs.free_bytes is not None:
            raise OSError(errno.ENOSPC, "no space left")
        self.inode.resize("allocate", size)

    def size(self) -> int:
        return len(self.inode.data)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._fs.open_files -= 1


class SimFileSystem:
    def __init__(self) -> None:
        self.root = Directory()
        self.faults: list[Fault] = []
        self.operations = 0
        self.stop_at: int | None = None
        self.stopped = False
        self.free_bytes: int | None = None
        self.copy_on_write: set[str] = set()
        """Names of files that need free space for each write, even for overwriting (btrfs)."""
        self.open_files = 0
        self.short_reads: random.Random | None = None
        """True if reads return fewer bytes than requested, as a kernel may do at any time."""
        self.log: list[str] = []
        self.modified: dict[str, int] = {}
        """The modification times of files, by name."""

    # --- what goes wrong ---

    def step(self, operation: str, path: Path, *, counted: bool = True) -> Fault | None:
        if self.stopped or (counted and self.operations == self.stop_at):
            self.stopped = True
            raise MachineStopped(f"{operation} {path.name}")
        if counted:
            self.operations += 1
            self.log.append(f"{operation} {path.name}")
        for fault in self.faults:
            if fault.hits(operation, path):
                return fault
        return None

    def raise_fault(self, operation: str, path: Path) -> None:
        fault = self.step(operation, path)
        if fault is not None:
            raise OSError(fault.error, "injected")

    def _maybe_late(self, operation: str, path: Path, effect: Callable[[], None]) -> None:
        fault = self.step(operation, path)
        if fault is None or fault.after:
            effect()
        if fault is not None:
            raise OSError(fault.error, "injected")

    def power_cut(self, keep: Keep = "some", seed: int = 0) -> SimFileSystem:
        """Return the disk that the next start finds after a power cut."""
        rng = random.Random(seed)
        after = SimFileSystem()
        after.root = self.root.after_power_cut(keep, rng, {})
        after.short_reads = self.short_reads
        return after

    def kill(self) -> SimFileSystem:
        """Return the state after a kill of the process: all written data, synced or not."""
        after = SimFileSystem()
        after.root = self.root
        after.short_reads = self.short_reads
        return after

    # --- FileSystem ---

    def _parent(self, path: Path) -> Directory:
        node = self._node(path.parent)
        if not isinstance(node, Directory):
            raise NotADirectoryError(errno.ENOTDIR, str(path.parent))
        return node

    def _node(self, path: Path) -> Inode | Directory:
        node: Inode | Directory = self.root
        for part in path.parts[1:]:
            if not isinstance(node, Directory) or part not in node.entries:
                raise FileNotFoundError(errno.ENOENT, str(path))
            node = node.entries[part]
        return node

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> SimFile:
        if create:
            self.raise_fault("create", path)
            parent = self._parent(path)
            node = parent.entries.get(path.name)
            if node is None:
                node = Inode()
                parent.change({path.name: node})
            if isinstance(node, Directory):
                raise IsADirectoryError(errno.EISDIR, "is a directory", str(path))
            node.bad_pages.clear()
            if node.data:
                node.resize("truncate", 0)
        else:
            fault = self.step("open", path, counted=False)
            if fault is not None:
                raise OSError(fault.error, "injected", str(path))
            node = self._node(path)
            if isinstance(node, Directory):
                raise IsADirectoryError(errno.EISDIR, "is a directory", str(path))
        assert isinstance(node, Inode)
        return SimFile(self, path, node)

    def rename(self, source: Path, target: Path) -> None:
        node = self._node(source)
        assert source.parent == target.parent
        parent = self._parent(source)
        old = parent.entries.get(target.name)
        if isinstance(old, Directory) and isinstance(node, Inode):
            raise IsADirectoryError(errno.EISDIR, "is a directory", str(target))
        if isinstance(old, Directory) and old.entries:
            raise OSError(errno.ENOTEMPTY, "directory not empty")
        self._maybe_late(
            "rename", target, lambda: parent.change({source.name: None, target.name: node})
        )

    def unlink(self, path: Path) -> None:
        if isinstance(self._node(path), Directory):
            raise IsADirectoryError(errno.EISDIR, "is a directory", str(path))
        self.raise_fault("unlink", path)
        self._parent(path).change({path.name: None})

    def exists(self, path: Path) -> bool:
        fault = self.step("stat", path, counted=False)
        if fault is not None:
            raise OSError(fault.error, "injected", str(path))
        try:
            self._node(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def modified_ns(self, path: Path) -> int:
        """Return the modification time; 0 (unknown) unless a test sets it."""
        self._node(path)
        return self.modified.get(path.name, 0)

    def list_directory(self, path: Path) -> list[str]:
        node = self._node(path)
        assert isinstance(node, Directory)
        return sorted(node.entries)

    def make_directory(self, path: Path) -> None:
        for directory in [*reversed(path.parents), path][1:]:
            if not self.exists(directory):
                self.raise_fault("mkdir", directory)
                self._parent(directory).change({directory.name: Directory()})

    def remove_directory(self, path: Path) -> None:
        node = self._node(path)
        if isinstance(node, Directory) and node.entries:
            raise OSError(errno.ENOTEMPTY, "directory not empty")
        self.raise_fault("rmdir", path)
        self._parent(path).change({path.name: None})

    def fsync_directory(self, path: Path) -> None:
        self.raise_fault("fsync-directory", path)
        node = self._node(path)
        assert isinstance(node, Directory)
        node.sync()

    # --- for tests ---

    def digest(self) -> bytes:
        """Return a digest that is equal for two disks with the same names and bytes."""
        found = hashlib.blake2b()
        _add_to_digest(found, self.root, "")
        return found.digest()

    def read(self, path: Path) -> bytes:
        node = self._node(path)
        assert isinstance(node, Inode)
        return bytes(node.data)

    def replace(self, path: Path, raw: bytes) -> None:
        """Change a file directly, as a failing disk or a mistake of an operator would."""
        node = self._node(path)
        assert isinstance(node, Inode)
        node.data[:] = raw
        node.stable = raw
        node.pending.clear()

    def is_bad(self, path: Path) -> bool:
        """Return True if a page of the file is lost."""
        node = self._node(path)
        assert isinstance(node, Inode)
        return bool(node.bad_pages)

    def lose_page(self, path: Path, position: int) -> range:
        """Make the page that contains `position` unreadable from now on."""
        node = self._node(path)
        assert isinstance(node, Inode)
        assert position < len(node.data)
        node.bad_pages.add(position // PAGE)
        page = page_at(position)
        return range(page.start, min(page.stop, len(node.data)))

    def files(self) -> list[Path]:
        """Return every file on the disk."""
        return sorted(_paths_below(self.root, Path("/")))

    def remove(self, path: Path) -> None:
        parent = self._parent(path)
        del parent.entries[path.name]
        parent.sync()
