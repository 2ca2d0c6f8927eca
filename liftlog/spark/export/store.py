"""Stores the files of a table. Written files are durable when a call returns.

There are two kinds of store: a directory, and a URL to which pyarrow can write. Manifests need
atomic operations that only a directory has, so at a URL only Delta tables work. pyarrow and
delta-rs find the credentials for a URL in the environment of each host.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Protocol
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from liftlog.errors import InvalidArgument, StorageError
from liftlog.log.files.filesystem import storage_errors

_CANNOT_LINK = {
    errno.EPERM,
    errno.EOPNOTSUPP,
    errno.ENOSYS,
    errno.EMLINK,
    errno.EXDEV,
    errno.EINVAL,
}


class Store(Protocol):
    """A place for files. Paths are relative, with slashes. Methods raise StorageError and
    DiskFull."""

    uri: str
    """The store's address, in the form that delta-rs accepts."""

    def make_directory(self, path: str) -> None: ...

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; empty if the directory does not exist."""
        ...

    def opened(self, path: str) -> AbstractContextManager[Any]:
        """Return a context manager that opens a file for reading. The file can seek."""
        ...

    def size(self, path: str) -> int | None:
        """Return the size of a file in bytes; None if the file does not exist."""
        ...

    def total_bytes(self, path: str) -> int:
        """Return the size in bytes of a file, or of all files below a directory. A file that does
        not exist, or that is removed during the call, counts as 0."""
        ...

    def sync(self, path: str) -> None:
        """Make a file that another library has written durable: its content and its name."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with its content. Does nothing if the path does not
        exist."""
        ...

    def writing(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Return a context manager that creates a binary file. The file is durable when the block
        ends."""
        ...


def is_url(where: str) -> bool:
    return "://" in where and urlsplit(where).scheme != "file"


def local_path(where: str) -> Path:
    """Return an absolute path, because driver and executors can have different working
    directories."""
    if where.startswith("file:"):
        parts = urlsplit(where)
        if parts.query or parts.fragment:
            raise InvalidArgument(
                f"{where} contains a '?' or '#', which end the path in a URL",
                hint="write %3F and %23 instead, or give the path without file:",
            )
        where = unquote(parts.path)
    if not where:
        raise InvalidArgument("--to is empty: where should the table be written?")
    return Path(where).absolute()


def open_store(where: str) -> Store:
    """Open the store of a directory or a URL. Raises InvalidArgument."""
    if is_url(where):
        return RemoteStore(where)
    return LocalStore(local_path(where))


class Disk:
    """The system calls that change files. Tests replace them with calls that fail. Methods raise
    OSError."""

    def make_directory(self, path: Path) -> None:
        path.mkdir(exist_ok=True)

    def create(self, path: Path) -> BinaryIO:
        return path.open("xb")

    def fsync(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def link(self, existing: Path, new: Path) -> None:
        os.link(existing, new)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        shutil.rmtree(path)


class LocalStore:
    """A store in a directory, on this host or mounted on every host. It also has the atomic
    operations that manifests need."""

    disk: ClassVar[Disk] = Disk()

    def __init__(self, root: Path) -> None:
        self.root = root
        self.uri = str(root)

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents. Each directory is durable before anything is created
        in it."""
        wanted = self.root / path
        with storage_errors(f"creating {wanted}"):
            for one in reversed((wanted, *wanted.parents)):
                is_new = not one.is_dir()
                if is_new:
                    self.disk.make_directory(one)
                # Synced even if it exists, because the run that created it may have been stopped
                # before this sync.
                if is_new or one.is_relative_to(self.root):
                    self.disk.fsync(one.parent)

    def names(self, path: str) -> list[str]:
        directory = self.root / path
        with storage_errors(f"listing {directory}"):
            try:
                return sorted(entry.name for entry in directory.iterdir())
            except FileNotFoundError:
                return []

    def read(self, path: str) -> bytes:
        """Read a file. Raises FileNotFoundError."""
        full = self.root / path
        try:
            return full.read_bytes()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StorageError(f"reading {full}: {error.strerror or error}") from error

    @contextmanager
    def opened(self, path: str) -> Iterator[BinaryIO]:
        full = self.root / path
        with storage_errors(f"reading {full}"), full.open("rb") as file:
            yield file

    def size(self, path: str) -> int | None:
        full = self.root / path
        with storage_errors(f"looking at {full}"):
            try:
                return full.stat().st_size
            except FileNotFoundError:
                return None

    def total_bytes(self, path: str) -> int:
        full = self.root / path
        with storage_errors(f"looking at {full}"):
            if not full.is_dir():
                return _size_of(full)
            walk = os.walk(full, onerror=_unless_gone)
            return sum(_size_of(Path(top, name)) for top, _, names in walk for name in names)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write a small file atomically, and return True. If the file exists, changes nothing and
        returns False."""
        full = self.root / path
        with storage_errors(f"writing {full}"):
            temporary = self._write_beside(full, data)
            try:
                self.disk.link(temporary, full)
            except FileExistsError:
                # Over NFS the answer to link() may be lost; the repeated request then finds the
                # file that the first one has created.
                if full.read_bytes() != data:
                    return False
            except OSError as error:
                if error.errno in _CANNOT_LINK:
                    raise no_atomic_manifest(str(self.root), "it knows no hard links") from error
                raise
            finally:
                self.disk.unlink(temporary)
            self.disk.fsync(full.parent)
            return True

    def sync(self, path: str) -> None:
        full = self.root / path
        with storage_errors(f"writing {full}"):
            self.disk.fsync(full)
            self.disk.fsync(full.parent)

    def remove(self, path: str) -> None:
        full = self.root / path
        with storage_errors(f"removing {full}"):
            try:
                if full.is_dir() and not full.is_symlink():
                    self.disk.remove_tree(full)
                else:
                    self.disk.unlink(full)
            except FileNotFoundError:
                pass  # another process has removed it

    @contextmanager
    def writing(self, path: str) -> Iterator[BinaryIO]:
        full = self.root / path
        with storage_errors(f"writing {full}"):
            with self.disk.create(full) as file:
                yield file
            self.disk.fsync(full)
            self.disk.fsync(full.parent)

    def _write_beside(self, full: Path, data: bytes) -> Path:
        temporary = full.with_name(f".{full.name}.{uuid.uuid4().hex}.tmp")
        try:
            with self.disk.create(temporary) as file:
                file.write(data)
            self.disk.fsync(temporary)
        except BaseException:
            self.disk.unlink(temporary)
            raise
        return temporary


def _size_of(path: Path) -> int:
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


class RemoteStore:
    """A store at a URL that `pyarrow.fs` supports: s3, gs, abfs, hdfs. Only for Delta tables.

    A file exists only after it was closed. It is as durable as the object store promises.
    """

    def __init__(self, url: str) -> None:
        # Spark's name for s3 is s3a; pyarrow and delta-rs only accept s3.
        self.uri = re.sub("^s3a://", "s3://", url.rstrip("/"))
        try:
            self._files, self._root = fs.FileSystem.from_uri(self.uri)
        except (pa.ArrowException, OSError) as error:
            raise InvalidArgument(
                f"{url} cannot be written to: {str(error).splitlines()[0]}",
                hint="use a directory, or a URL of s3, gs, abfs or hdfs",
            ) from error

    def make_directory(self, path: str) -> None:
        with storage_errors(f"creating {self.uri}/{path}"):
            self._files.create_dir(self._at(path), recursive=True)

    def names(self, path: str) -> list[str]:
        selector = fs.FileSelector(self._at(path), allow_not_found=True)
        with storage_errors(f"listing {self.uri}/{path}"):
            return sorted(info.base_name for info in self._files.get_file_info(selector))

    @contextmanager
    def opened(self, path: str) -> Iterator[Any]:
        with storage_errors(f"reading {self.uri}/{path}"):
            with self._files.open_input_file(self._at(path)) as file:
                yield file

    def size(self, path: str) -> int | None:
        with storage_errors(f"looking at {self.uri}/{path}"):
            info = self._files.get_file_info(self._at(path))
        return info.size if info.type == fs.FileType.File else None

    def total_bytes(self, path: str) -> int:
        where = self._at(path)
        with storage_errors(f"looking at {self.uri}/{path}"):
            found = [self._files.get_file_info(where)]
            selector = fs.FileSelector(where, allow_not_found=True, recursive=True)
            if found[0].type == fs.FileType.Directory:
                found = self._files.get_file_info(selector)
        return sum(one.size for one in found if one.type == fs.FileType.File)

    def sync(self, path: str) -> None:
        """Do nothing, because stored files are durable."""

    def remove(self, path: str) -> None:
        where = self._at(path)
        with storage_errors(f"removing {self.uri}/{path}"):
            kind = self._files.get_file_info(where).type
            try:
                if kind == fs.FileType.Directory:
                    self._files.delete_dir(where)
                elif kind == fs.FileType.File:
                    self._files.delete_file(where)
            except FileNotFoundError:
                pass  # another process has removed it

    @contextmanager
    def writing(self, path: str) -> Iterator[Any]:
        with storage_errors(f"writing {self.uri}/{path}"):
            with self._files.open_output_stream(self._at(path)) as file:
                yield file

    def _at(self, path: str) -> str:
        return join(self._root, path)


def no_atomic_manifest(where: str, why: str) -> InvalidArgument:
    return InvalidArgument(
        f"{where} cannot hold a Parquet table: {why}, and a snapshot is committed by one",
        hint="use --format delta (pip install 'liftlog[delta]'), or a directory on a POSIX file "
        "system",
    )


def join(*parts: str) -> str:
    """Join the parts with slashes. If the first part is a URL, the result is a URL."""
    return "/".join(part.rstrip("/") for part in parts)
