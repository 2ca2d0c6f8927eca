"""The process of `losefs`. It implements the kernel's FUSE protocol, and forgets unsynced data on
demand.

    python -m support.disks.losefs_server MOUNTPOINT

Commands are JSON lines on standard input; each is answered by one line. No FUSE library is used, so
only /dev/fuse and the permission to mount are needed. Layouts: linux/fuse.h.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import random
import select
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from support.disks.losefs_tree import PAGE, LoseDirectory, LoseFile, Node

LOOKUP, FORGET, GETATTR, SETATTR = 1, 2, 3, 4
MKDIR, UNLINK, RMDIR, RENAME, OPEN, READ, WRITE, STATFS = 9, 10, 11, 12, 14, 15, 16, 17
RELEASE, FSYNC, FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR, FSYNCDIR = 18, 20, 25, 26, 27, 28, 29, 30
ACCESS, CREATE, INTERRUPT, DESTROY, BATCH_FORGET, FALLOCATE, RENAME2 = 34, 35, 36, 38, 42, 43, 45

NAMES = {
    WRITE: "write",
    SETATTR: "truncate",
    FALLOCATE: "allocate",
    CREATE: "create",
    MKDIR: "mkdir",
    UNLINK: "unlink",
    RMDIR: "rmdir",
    RENAME: "rename",
    RENAME2: "rename",
    FSYNC: "fsync",
    FSYNCDIR: "fsync_directory",
}
"""The operations that count for `cut_after`, and that can be made to fail."""

MAX_WRITE = 1 << 20
MNT_DETACH = 2
FATTR_MODE, FATTR_SIZE = 1 << 0, 1 << 3
FOPEN_KEEP_CACHE = 1 << 1
INIT_FLAGS = (1 << 5) | (1 << 22)  # big writes, max_pages

_IN = struct.Struct("<IIQQIIIHH")
_ATTR = struct.Struct("<6Q10I")
_STAT_BLOCK = 512
NOTIFY_INVAL_INODE = 2

libc = ctypes.CDLL(None, use_errno=True)


class PowerCut(Exception):
    """The machine stops. No further request is answered."""


class LoseFs:
    """One file tree, which is mounted several times, one mount after the other."""

    def __init__(self, mountpoint: str) -> None:
        self.mountpoint = mountpoint
        self.root = LoseDirectory()
        self.fuse = -1
        self.operations = 0
        self.synced = 0
        self.retried = 0
        self.cut_at: int | None = None
        self.capacity: int | None = None
        self.faults: list[dict[str, Any]] = []
        self.stalls_at: str | None = None
        self.stalled: list[bytes] = []
        self.unreadable = 0
        self._forget_everything()

    def _forget_everything(self) -> None:
        self.nodes: dict[int, Node] = {1: self.root}
        self.numbers: dict[int, int] = {id(self.root): 1}
        self.lookups: dict[int, int] = {}
        self.names: dict[int, str] = {1: ""}
        self.listings: dict[int, list[tuple[str, Node]]] = {}
        self.next_number = 2
        self.failed: set[int] = set()  # files with a failed fsync since their last truncation
        self.stalled.clear()

    # --- the mount ---

    def mount(self) -> None:
        self._forget_everything()
        self.fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self.fuse},rootmode=40000,user_id=0,group_id=0,allow_other"
        done = libc.mount(b"losefs", self.mountpoint.encode(), b"fuse", 6, options.encode())
        if done != 0:
            number = ctypes.get_errno()
            os.close(self.fuse)
            self.fuse = -1
            raise OSError(number, os.strerror(number))

    def unmount(self) -> None:
        if self.fuse >= 0:
            os.close(self.fuse)  # waiting callers get an error
            self.fuse = -1
            libc.umount2(self.mountpoint.encode(), MNT_DETACH)

    def cut(self, keep: str, seed: int) -> None:
        self.unmount()
        self.cut_at = None
        self.root = self.root.after_power_cut(keep, random.Random(seed))  # type: ignore[arg-type]

    # --- requests of the kernel ---

    def serve_one(self) -> None:
        try:
            raw = os.read(self.fuse, MAX_WRITE + PAGE)
        except OSError as error:
            if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                return
            if error.errno == errno.ENODEV:  # unmounted by another program
                self.unmount()
                return
            raise
        _, opcode, _, number, *_ = _IN.unpack_from(raw)
        body = raw[_IN.size :]
        if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
            self.forget(opcode, number, body)
            return
        is_sync = opcode in (FSYNC, FSYNCDIR) and self.stalls_at is not None
        if is_sync and str(self.stalls_at) in self.names.get(number, ""):
            self.stalled.append(raw)
        else:
            self.serve(raw)

    def go_on(self) -> None:
        """Complete all blocked operations."""
        self.stalls_at = None
        stalled, self.stalled = self.stalled, []
        for raw in stalled:
            self.serve(raw)

    def serve(self, raw: bytes) -> None:
        _, opcode, unique, number, *_ = _IN.unpack_from(raw)
        body = raw[_IN.size :]
        status, answer = 0, b""
        try:
            self.count_and_fail(opcode, number, body)
            handler = HANDLERS.get(opcode)
            if handler is None:
                raise OSError(errno.ENOSYS, "")
            answer = handler(self, number, body)
        except OSError as error:
            status = error.errno or errno.EIO
        try:
            os.write(self.fuse, struct.pack("<IiQ", 16 + len(answer), -status, unique) + answer)
        except OSError as error:
            if error.errno != errno.ENOENT:  # the caller was killed in the meantime
                raise

    def count_and_fail(self, opcode: int, number: int, body: bytes) -> None:
        name = NAMES.get(opcode)
        if name is None:
            return
        self.operations += 1
        if self.cut_at is not None and self.operations >= self.cut_at:
            raise PowerCut
        if opcode == FSYNC and number in self.failed:
            self.retried += 1
        path = self.names.get(number, "")
        if opcode in (CREATE, MKDIR, UNLINK, RMDIR, RENAME, RENAME2):
            path += "/" + body.rstrip(b"\0").rpartition(b"\0")[2].decode()
        for fault in self.faults:
            is_meant = all(part in path for part in fault["path"].split("*"))
            if fault["operation"] == name and is_meant and fault["times"]:
                fault["skip"] -= 1
                if fault["skip"] >= 0:
                    continue
                fault["times"] -= 1
                fault["hit"] = fault.get("hit", 0) + 1
                if opcode in (FSYNC, FSYNCDIR):
                    self.nodes[number].fail_to_sync()
                if opcode == FSYNC:
                    self.failed.add(number)
                raise OSError(fault["error"], "")

    def forget(self, opcode: int, number: int, body: bytes) -> None:
        if opcode == INTERRUPT:
            return
        if opcode == FORGET:
            gone = [(number, struct.unpack_from("<Q", body)[0])]
        else:
            count = struct.unpack_from("<I", body)[0]
            gone = [struct.unpack_from("<QQ", body, 8 + 16 * i) for i in range(count)]
        for one, times in gone:
            left = self.lookups.get(one, 0) - times
            self.lookups[one] = left
            if left <= 0 and one != 1 and one in self.nodes:
                del self.numbers[id(self.nodes.pop(one))]
                del self.lookups[one]

    def number_of(self, node: Node, path: str) -> int:
        number = self.numbers.get(id(node))
        if number is None:
            number = self.next_number
            self.next_number += 1
            self.numbers[id(node)] = number
            self.nodes[number] = node
        self.names[number] = path
        return number

    def entry(self, parent: int, name: str, node: Node) -> bytes:
        number = self.number_of(node, f"{self.names.get(parent, '')}/{name}")
        self.lookups[number] = self.lookups.get(number, 0) + 1
        return struct.pack("<4QII", number, 0, 1, 1, 0, 0) + self.attributes(number, node)

    def attributes(self, number: int, node: Node) -> bytes:
        is_file = isinstance(node, LoseFile)
        size = len(node.data) if isinstance(node, LoseFile) else PAGE
        mode = (0o100000 if is_file else 0o040000) | node.mode
        now = int(time.time())
        return _ATTR.pack(
            node.inode, size, -(-size // _STAT_BLOCK), now, now, now, 0, 0, 0,
            mode, 1 if is_file else 2, 0, 0, 0, PAGE, 0,
        )  # fmt: skip

    def lose_pages(self, path: str, pages: list[int], done: Callable[[], None]) -> None:
        """Make these pages of a file unreadable, and drop them from the kernel's cache.

        The kernel may delay the drop until running reads end, and this thread answers these reads.
        So another thread requests the drop, and calls `done`.
        """
        node: Node = self.root
        for name in path.split("/"):
            if not isinstance(node, LoseDirectory) or name not in node.entries:
                raise OSError(errno.ENOENT, path)
            node = node.entries[name]
        assert isinstance(node, LoseFile)
        node.bad_pages.update(pages)
        number = self.numbers.get(id(node))
        messages = []
        if number is not None and self.fuse >= 0:
            messages = [
                struct.pack("<IiQQqq", 40, NOTIFY_INVAL_INODE, 0, number, page * PAGE, PAGE)
                for page in pages
            ]
        threading.Thread(target=self._notify, args=(messages, done)).start()

    def _notify(self, messages: list[bytes], done: Callable[[], None]) -> None:
        for message in messages:
            try:
                os.write(self.fuse, message)
            except OSError as error:
                if error.errno != errno.ENOENT:  # the kernel has dropped the file already
                    raise
        done()

    def directory(self, number: int) -> LoseDirectory:
        node = self.nodes[number]
        if not isinstance(node, LoseDirectory):
            raise OSError(errno.ENOTDIR, "")
        return node

    def file(self, number: int) -> LoseFile:
        node = self.nodes[number]
        if not isinstance(node, LoseFile):
            raise OSError(errno.EISDIR, "")
        return node

    def room(self) -> int | None:
        if self.capacity is None:
            return None
        return max(self.capacity - sum(len(file.data) for file in self.root.files()), 0)


def _name(body: bytes) -> str:
    return body.partition(b"\0")[0].decode()


def _init(fs: LoseFs, number: int, body: bytes) -> bytes:
    major, minor, readahead = struct.unpack_from("<III", body)
    assert major == 7
    return struct.pack(
        "<IIIIHHIIHHI28x", 7, min(minor, 31), readahead, INIT_FLAGS, 12, 9, MAX_WRITE, 1, 256, 0, 0
    )


def _lookup(fs: LoseFs, number: int, body: bytes) -> bytes:
    name = _name(body)
    node = fs.directory(number).entries.get(name)
    if node is None:
        raise OSError(errno.ENOENT, "")
    return fs.entry(number, name, node)


def _getattr(fs: LoseFs, number: int, body: bytes) -> bytes:
    return struct.pack("<QII", 1, 0, 0) + fs.attributes(number, fs.nodes[number])


def _setattr(fs: LoseFs, number: int, body: bytes) -> bytes:
    valid, _, _, size = struct.unpack_from("<IIQQ", body)
    if valid & FATTR_MODE:
        fs.nodes[number].mode = struct.unpack_from("<I", body, 68)[0] & 0o7777
    if valid & FATTR_SIZE:
        file = fs.file(number)
        room = fs.room()
        if room is not None and size - len(file.data) > room:
            raise OSError(errno.ENOSPC, "")
        if size % PAGE and size < len(file.data) and file.is_bad(size, 1):
            raise OSError(errno.EIO, "")
        file.resize(size)
        if size == 0:
            fs.failed.discard(number)
    return _getattr(fs, number, body)


def _mkdir(fs: LoseFs, number: int, body: bytes) -> bytes:
    name = _name(body[8:])
    parent = fs.directory(number)
    if name in parent.entries:
        raise OSError(errno.EEXIST, "")
    made = LoseDirectory(struct.unpack_from("<I", body)[0] & 0o7777)
    parent.change({name: made})
    return fs.entry(number, name, made)


def _create(fs: LoseFs, number: int, body: bytes) -> bytes:
    name = _name(body[16:])
    parent = fs.directory(number)
    if fs.room() == 0:
        raise OSError(errno.ENOSPC, "")
    made = LoseFile(mode=struct.unpack_from("<I", body, 4)[0] & 0o7777)
    parent.change({name: made})
    return fs.entry(number, name, made) + _open(fs, number, body)


def _open(fs: LoseFs, number: int, body: bytes) -> bytes:
    return struct.pack("<QII", 0, FOPEN_KEEP_CACHE, 0)


def _unlink(fs: LoseFs, number: int, body: bytes) -> bytes:
    name = _name(body)
    parent = fs.directory(number)
    node = parent.entries.get(name)
    if node is None:
        raise OSError(errno.ENOENT, "")
    if isinstance(node, LoseDirectory) and node.entries:
        raise OSError(errno.ENOTEMPTY, "")
    parent.change({name: None})
    return b""


def _rename(fs: LoseFs, number: int, body: bytes, skip: int = 8) -> bytes:
    target = fs.directory(struct.unpack_from("<Q", body)[0])
    source = fs.directory(number)
    old, new = (part.decode() for part in body[skip:].split(b"\0")[:2])
    node = source.entries.get(old)
    if node is None:
        raise OSError(errno.ENOENT, "")
    if source is target:
        source.change({old: None, new: node})
    else:
        target.change({new: node})
        source.change({old: None})
    return b""


def _rename2(fs: LoseFs, number: int, body: bytes) -> bytes:
    return _rename(fs, number, body, 16)


def _read(fs: LoseFs, number: int, body: bytes) -> bytes:
    _, offset, size = struct.unpack_from("<QQI", body)
    file = fs.file(number)
    if file.bad_pages and file.is_bad(offset, min(size, len(file.data) - offset)):
        # The kernel then repeats a request for several pages as one request for each page.
        fs.unreadable += 1
        raise OSError(errno.EIO, "")
    return bytes(file.data[offset : offset + size])


def _write(fs: LoseFs, number: int, body: bytes) -> bytes:
    _, offset, size = struct.unpack_from("<QQI", body)
    raw = body[40 : 40 + size]
    file = fs.file(number)
    for border in (offset, offset + len(raw)):
        # To write a part of a page, the kernel reads the page first.
        if border % PAGE and file.is_bad(border, 1) and border // PAGE * PAGE < len(file.data):
            raise OSError(errno.EIO, "")
    room = fs.room()
    if room is not None and (excess := offset + size - max(len(file.data), offset) - room) > 0:
        raw = raw[: max(size - excess, 0)]
        if not raw:
            raise OSError(errno.ENOSPC, "")
    file.write(offset, raw)
    return struct.pack("<II", len(raw), 0)


def _allocate(fs: LoseFs, number: int, body: bytes) -> bytes:
    _, offset, length, mode = struct.unpack_from("<QQQI", body)
    if mode != 0:
        raise OSError(errno.EOPNOTSUPP, "")
    file = fs.file(number)
    room = fs.room()
    growth = offset + length - len(file.data)
    if room is not None and growth > room:
        raise OSError(errno.ENOSPC, "")
    if growth > 0:
        file.resize(offset + length)
    return b""


def _sync(fs: LoseFs, number: int, body: bytes) -> bytes:
    fs.nodes[number].sync()
    fs.synced += 1
    return b""


def _nothing(fs: LoseFs, number: int, body: bytes) -> bytes:
    return b""


def _opendir(fs: LoseFs, number: int, body: bytes) -> bytes:
    handle = fs.next_number
    fs.next_number += 1
    fs.listings[handle] = sorted(fs.directory(number).entries.items())
    return struct.pack("<QII", handle, 0, 0)


def _readdir(fs: LoseFs, number: int, body: bytes) -> bytes:
    handle, offset, size = struct.unpack_from("<QQI", body)
    answer = b""
    for i, (name, node) in enumerate(fs.listings[handle][offset:], offset + 1):
        raw = name.encode()
        kind = 8 if isinstance(node, LoseFile) else 4
        entry = struct.pack("<QQII", 1_000_000 + i, i, len(raw), kind) + raw
        entry += bytes(-len(entry) % 8)
        if len(answer) + len(entry) > size:
            break
        answer += entry
    return answer


def _releasedir(fs: LoseFs, number: int, body: bytes) -> bytes:
    fs.listings.pop(struct.unpack_from("<Q", body)[0], None)
    return b""


def _statfs(fs: LoseFs, number: int, body: bytes) -> bytes:
    room = fs.room()
    free = (1 << 30 if room is None else room) // PAGE
    total = (1 << 31 if fs.capacity is None else fs.capacity) // PAGE
    return struct.pack("<5Q3I28x", total, free, free, 1 << 20, 1 << 20, PAGE, 255, PAGE)


HANDLERS: dict[int, Callable[[LoseFs, int, bytes], bytes]] = {
    INIT: _init,
    LOOKUP: _lookup,
    GETATTR: _getattr,
    SETATTR: _setattr,
    MKDIR: _mkdir,
    UNLINK: _unlink,
    RMDIR: _unlink,
    RENAME: _rename,
    RENAME2: _rename2,
    OPEN: _open,
    CREATE: _create,
    READ: _read,
    WRITE: _write,
    STATFS: _statfs,
    RELEASE: _nothing,
    FSYNC: _sync,
    FLUSH: _nothing,
    OPENDIR: _opendir,
    READDIR: _readdir,
    RELEASEDIR: _releasedir,
    FSYNCDIR: _sync,
    ACCESS: _nothing,
    DESTROY: _nothing,
    FALLOCATE: _allocate,
}


def _command(fs: LoseFs, asked: dict[str, Any], later: Callable[[], None]) -> dict[str, Any] | None:
    """Return the answer to a command. Returns None if another thread will send the answer by
    `later`."""
    match asked.pop("command"):
        case "lose_pages":
            fs.lose_pages(asked["path"], asked["pages"], later)
            return None
        case "find_pages":
            for file in fs.root.files():
                file.bad_pages.clear()
        case "mount":
            fs.mount()
        case "cut":
            fs.cut(**asked)
        case "cut_after":
            count = asked["operations"]
            fs.cut_at = None if count is None else fs.operations + count
        case "fail":
            fs.faults.append(asked)
        case "heal":
            fs.faults.clear()
        case "stall":
            fs.stalls_at = asked["path"]
        case "go_on":
            fs.go_on()
        case "capacity":
            fs.capacity = asked["size_bytes"]
    return {
        "mounted": fs.fuse >= 0,
        "operations": fs.operations,
        "synced": fs.synced,
        "retried": fs.retried,
        "used_bytes": sum(len(file.data) for file in fs.root.files()),
        "hits": sum(fault.get("hit", 0) for fault in fs.faults),
        "unreadable": fs.unreadable,
        "stalled": len(fs.stalled),
    }


def main(mountpoint: str) -> None:
    fs = LoseFs(mountpoint)
    commands = sys.stdin.fileno()
    received = b""
    try:
        while True:
            waiting = [commands] if fs.fuse < 0 else [commands, fs.fuse]
            ready, _, _ = select.select(waiting, [], [])
            if commands in ready:
                more = os.read(commands, 1 << 16)
                if not more:
                    return  # the test is gone
                *lines, received = (received + more).split(b"\n")
                for line in lines:
                    answer: dict[str, Any] | None
                    try:
                        answer = _command(fs, json.loads(line), lambda: print("{}", flush=True))
                    except OSError as error:
                        answer = {"error": error.strerror, "errno": error.errno}
                    if answer is not None:
                        print(json.dumps(answer), flush=True)
            elif fs.fuse in ready:
                try:
                    fs.serve_one()
                except PowerCut:
                    fs.unmount()
    finally:
        fs.unmount()


if __name__ == "__main__":
    main(sys.argv[1])
