"""Small files that are replaced as a whole: manifest, recovery points, clean marker, snapshots.

    liftlog <kind> <version> crc32c=<8 hex digits>\n
    <JSON, UTF-8>

The version is 1, except that a manifest with a list of erased files has version 2.

The checksum covers the JSON. A file is written under a temporary name, fsynced, and renamed over
the old one; then its directory is fsynced. So after a crash the directory contains either the old
or the new file.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crc32c import crc32c

from liftlog.errors import CorruptMetadata, NewerFormat, UnsupportedFormat
from liftlog.log.files.filesystem import FileSystem, write_all
from liftlog.log.files.unreadable import is_passing, read_small_file

logger = logging.getLogger("liftlog.log")

VERSION = 1
TEMPORARY_SUFFIX = ".tmp"


def write_checkpoint_file(fs: FileSystem, path: Path, kind: str, content: dict[str, Any]) -> None:
    """Replace `path` atomically. Returns after the rename is durable. Raises OSError."""
    write_checkpoint_text(fs, path, kind, to_json(content))


def to_json(content: dict[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":"), sort_keys=True)


def checkpoint_bytes(kind: str, text: str, version: int = VERSION) -> bytes:
    """Return the bytes of a checkpoint file whose content is already JSON text."""
    body = text.encode()
    return b"liftlog %b %d crc32c=%08x\n%b" % (kind.encode(), version, crc32c(body), body)


def write_checkpoint_text(
    fs: FileSystem,
    path: Path,
    kind: str,
    text: str,
    *,
    version: int = VERSION,
    copy: Path | None = None,
    before_rename: Callable[[], None] = lambda: None,
) -> None:
    """Call `write_checkpoint_file` for content that is already JSON text.

    `copy` is a second file in the same directory: it gets the same content, and is renamed before
    `path` is. Both files are complete on disk before the first rename, and one fsync of the
    directory makes both names durable. `before_rename` is called when the content is durable under
    the temporary names.
    """
    raw = checkpoint_bytes(kind, text, version)
    targets = [path] if copy is None else [copy, path]
    temporaries = [target.with_name(target.name + TEMPORARY_SUFFIX) for target in targets]
    for temporary in temporaries:
        file = fs.open(temporary, create=True)
        try:
            write_all(file, [raw], 0)
            file.fdatasync()
        finally:
            file.close()
    before_rename()
    for temporary, target in zip(temporaries, targets, strict=True):
        fs.rename(temporary, target)
    fs.fsync_directory(path.parent)


def read_checkpoint_file(
    fs: FileSystem, path: Path, kind: str, newest: int = VERSION
) -> dict[str, Any] | None:
    """Return the content of `path`, or None if the file does not exist. `newest` is the newest
    version that the caller can read.

    Raises CorruptMetadata if its checksum is wrong or the disk cannot read it, UnsupportedFormat
    for a newer version, OSError for transient errors.
    """
    raw = read_small_file(fs, path)
    if raw is None:
        return None
    if isinstance(raw, OSError):
        reason = raw.strerror or str(raw)
        raise CorruptMetadata(f"{path.name} cannot be read from the disk: {reason}") from raw
    return parse_checkpoint(raw, path.name, kind, newest)


def read_dispensable_file(fs: FileSystem, path: Path, kind: str) -> dict[str, Any] | None:
    """Call `read_checkpoint_file` for a file that is only an optimization.

    A damaged file counts as missing. A file of another version also counts as missing: the first
    line contains the version but no checksum covers this line, so the version may be wrong because
    of damage.

    Raises OSError only for a transient error, such as a lack of file descriptors.
    """
    try:
        return read_checkpoint_file(fs, path, kind)
    except (CorruptMetadata, UnsupportedFormat) as error:
        problem: object = error
    except OSError as error:
        if is_passing(error):
            raise
        problem = error
    name = f"{path.parent.name}/{path.name}"
    logger.warning("checkpoint-file-ignored file=%s error=%s", name, problem)
    return None


def parse_checkpoint(raw: bytes, name: str, kind: str, newest: int = VERSION) -> dict[str, Any]:
    """Parse the bytes of a checkpoint file. Raises CorruptMetadata, UnsupportedFormat."""
    head, newline, body = raw.partition(b"\n")
    words = head.split()
    if not newline or len(words) != 4 or words[0] != b"liftlog" or words[1] != kind.encode():
        raise CorruptMetadata(f"{name} is not a liftlog {kind} file")
    if words[2] not in [b"%d" % one for one in range(VERSION, newest + 1)]:
        version = words[2].decode("ascii", "backslashreplace")
        raise NewerFormat(f"{name} has format version {version}, {newest} is known")
    if words[3] != f"crc32c={crc32c(body):08x}".encode():
        raise CorruptMetadata(f"{name} is damaged: its checksum does not match")
    try:
        content = json.loads(body)
    except ValueError as error:  # the checksum is correct, but the content is not JSON
        raise CorruptMetadata(f"{name} does not hold JSON") from error
    if not isinstance(content, dict):
        raise CorruptMetadata(f"{name} does not hold a JSON object")
    return content
