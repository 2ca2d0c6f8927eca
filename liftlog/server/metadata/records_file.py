"""The file behind `FileMetaStore`: keys, revisions and values in one checkpoint file. Blocking.

    liftlog records 1 crc32c=<8 hex digits>
    {"entries": {"stream.orders": {"revision": 7, "value": "<JSON>"}, ...}, "revision": 9}

Each change replaces the file. The new file is complete and fsynced before it is renamed. A change
is answered after the fsync of the directory, so an answered change survives a power cut. A reader
also fsyncs the directory before it uses a file that another process wrote. After this fsync, a
power cut cannot undo the content that the reader uses.

An entry with `expires_ns` ends at that time of the machine's monotonic clock, which all processes
of a machine share. After a reboot that clock starts again at 0. So an entry that ends later than
`ttl_ns` from now was written before the reboot, and has also expired.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from liftlog.cluster.store import CasLost, CasUnknown, Entry, MetaStoreError, StoreUnavailable
from liftlog.errors import CorruptMetadata, UnsupportedFormat
from liftlog.log.files.checkpoint_file import (
    checkpoint_bytes,
    parse_checkpoint,
    to_json,
    write_checkpoint_text,
)
from liftlog.log.files.filesystem import FileSystem, is_full
from liftlog.log.files.unreadable import read_small_file

KIND = "records"
LOCK_SUFFIX = ".lock"
_HEAD_BYTES = 64
_LOCK_SECONDS = 5.0
_LOCK_PAUSE_SECONDS = 0.002


class Change(NamedTuple):
    """One compare-and-set. A `value` of None deletes the key. `revision` is the expected
    revision."""

    key: str
    value: bytes | None
    revision: int
    ttl_ns: int = 0
    """Time to live; 0 if the entry does not expire."""


@dataclass(slots=True)
class Stored:
    """An entry in the form of the file. It is never modified, only replaced."""

    entry: Entry
    expires_ns: int = 0
    ttl_ns: int = 0
    _text: str = ""

    def has_expired(self, now_ns: int) -> bool:
        return bool(self.ttl_ns) and not now_ns < self.expires_ns <= now_ns + self.ttl_ns

    def to_json(self) -> str:
        """Return the entry as JSON. The entry is encoded only at its first write, because many
        starts write nothing."""
        if not self._text:
            revision, value = self.entry.revision, self.entry.value.decode()
            content: dict[str, Any] = {"revision": revision, "value": value}
            if self.ttl_ns:
                content |= {"expires_ns": self.expires_ns, "ttl_ns": self.ttl_ns}
            self._text = to_json(content)
        return self._text


@dataclass(frozen=True, slots=True)
class Content:
    """The content of the file at one moment. `entries` may include expired entries."""

    entries: Mapping[str, Stored]
    revision: int = 0
    """The revision of the newest change."""

    def to_json(self) -> str:
        entries = ",".join(
            [f"{json.dumps(key)}:{stored.to_json()}" for key, stored in self.entries.items()]
        )
        return f'{{"entries":{{{entries}}},"revision":{self.revision}}}'


def parse_records(raw: bytes, name: str) -> Content:
    """Parse the content of a file. Raises CorruptMetadata, UnsupportedFormat."""
    content = parse_checkpoint(raw, name, KIND)
    try:
        entries = {
            str(key): Stored(
                Entry(int(one["revision"]), one["value"].encode()),
                int(one.get("expires_ns", 0)),
                int(one.get("ttl_ns", 0)),
            )
            for key, one in content["entries"].items()
        }
        return Content(entries, int(content["revision"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptMetadata(f"{name} lacks a field: {error!r}") from error


@contextlib.contextmanager
def locked_file(path: Path, *, wait_seconds: float = _LOCK_SECONDS) -> Iterator[None]:
    """Hold the lock that every process on the machine takes before it changes the records. The
    operating system releases the lock when its holder ends. Raises OSError. Raises StoreUnavailable
    if another process, such as a stopped one, holds the lock for too long."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        until = time.monotonic() + wait_seconds
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise StoreUnavailable(
                        f"another process has held the lock {path} for {wait_seconds:g} s: look "
                        "for a process that is stopped (`fuser -v` names it)"
                    ) from None
                time.sleep(_LOCK_PAUSE_SECONDS)
        yield
    finally:
        os.close(fd)


class RecordsFile:
    """Reads and replaces the file. Blocking. Used by one thread at a time, except `content`.

    `lock` prevents other processes from changing the file at the same time. Without a lock, the
    file is read only once, and no other process may use it. A file that cannot be read is never
    replaced, because only this file names the streams whose directories are missing.
    """

    def __init__(
        self,
        path: Path,
        fs: FileSystem,
        *,
        lock: Callable[[], AbstractContextManager[None]] | None,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.path = path
        self._fs = fs
        self._lock = lock
        self.now_ns = now_ns
        self.content = Content({})
        """The content of the file when it was last read or written. It is durable. Any thread may
        read it."""
        self._raw: bytes | None = None
        """The bytes of `content`; None if there is no file."""
        self._is_current = False
        """True if `content` is certainly current, so that the file need not be checked."""

    def read(self) -> Content:
        """Return the newest content. Raises StoreUnavailable."""
        if not self._is_current or (self._lock is not None and self._is_replaced()):
            self._load()
        return self.content

    def apply(self, changes: Sequence[Change]) -> list[int | MetaStoreError]:
        """Make the changes in order, with one write. Returns, for each change, the new revision or
        the change's error. Durable on return. Raises StoreUnavailable if no change was made."""
        try:
            with contextlib.nullcontext() if self._lock is None else self._lock():
                if not self._is_current or self._lock is not None:
                    self._load()
                return self._apply(changes)
        except OSError as error:
            raise self._unavailable(error) from error

    def _apply(self, changes: Sequence[Change]) -> list[int | MetaStoreError]:
        now_ns, revision = self.now_ns(), self.content.revision
        entries = {
            key: one for key, one in self.content.entries.items() if not one.has_expired(now_ns)
        }
        results: list[int | MetaStoreError] = []
        for key, value, expected, ttl_ns in changes:
            found = entries.get(key)
            present = found.entry.revision if found is not None else 0
            if present != expected:
                results.append(CasLost(f"{key} is at revision {present}, not {expected}"))
                continue
            revision += 1
            results.append(revision)
            if value is None:
                entries.pop(key, None)
            else:
                expires_ns = now_ns + ttl_ns if ttl_ns else 0
                entries[key] = Stored(Entry(revision, value), expires_ns, ttl_ns)
        if revision == self.content.revision:
            return results
        failure = self._write(Content(entries, revision))
        if failure is not None:
            return [failure if isinstance(one, int) else one for one in results]
        return results

    # --- the file ---

    def _write(self, content: Content) -> MetaStoreError | None:
        """Replace the file. If the write failed, returns the error for the callers; otherwise
        None."""
        text = content.to_json()
        self._is_current = False
        try:
            write_checkpoint_text(self._fs, self.path, KIND, text)
        except OSError as error:
            return self._outcome(error)
        self.content, self._raw, self._is_current = content, checkpoint_bytes(KIND, text), True
        return None

    def _outcome(self, error: OSError) -> MetaStoreError:
        """Return the error for the callers. Before the rename of the file, nothing has changed.
        After the rename, other processes may see the change, and only a power cut can undo it."""
        with contextlib.suppress(OSError):
            if self._read_raw() == self._raw:
                self._is_current = True
                failure = self._unavailable(error)
                failure.__cause__ = error
                return failure
        return CasUnknown(f"{self.path} was replaced, and may not be durable: {_reason(error)}")

    def _load(self) -> None:
        """Read the file if it has changed, and make sure that its content is durable."""
        try:
            raw = self._read_raw()
            if self._is_current and raw == self._raw:
                return
            content = self._parse(raw)
            # Another process may have stopped before its rename was durable.
            self._fs.fsync_directory(self.path.parent)
        except OSError as error:
            raise self._unavailable(error) from error
        self.content, self._raw, self._is_current = content, raw, True

    def _parse(self, raw: bytes | None) -> Content:
        if raw is None:
            if self._lock is not None and self.content.revision:
                # Do not create an empty file: the missing file contained the records of the streams
                # of all nodes.
                raise StoreUnavailable(
                    f"{self.path} has been removed while liftlog was using it: put it back, from a "
                    "backup if need be, or restart every daemon that uses it"
                )
            return Content({})
        try:
            return parse_records(raw, self.path.name)
        except (CorruptMetadata, UnsupportedFormat) as error:
            raise StoreUnavailable(
                f"{self.path} cannot be read: {error.message}; put back a copy of it from a "
                "backup, or use the version of liftlog that wrote it"
            ) from error

    def _read_raw(self) -> bytes | None:
        raw = read_small_file(self._fs, self.path)
        if not isinstance(raw, OSError):
            return raw
        raise raw

    def _is_replaced(self) -> bool:
        """Return True if the size or the first line of the file shows that another process may have
        replaced it. Raises StoreUnavailable."""
        try:
            if not self._fs.exists(self.path):
                return self._raw is not None
            file = self._fs.open(self.path, writable=False)
            try:
                head, size = file.pread(_HEAD_BYTES, 0), file.size()
            finally:
                file.close()
        except OSError as error:
            raise self._unavailable(error) from error
        return self._raw is None or size != len(self._raw) or head != self._raw[:_HEAD_BYTES]

    def _unavailable(self, error: OSError) -> StoreUnavailable:
        hint = ""
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            hint = f"; make the directory {self.path.parent}, or mount what belongs there"
        elif is_full(error):
            hint = "; free some space on that disk"
        return StoreUnavailable(f"{self.path} cannot be used: {_reason(error)}{hint}")


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
