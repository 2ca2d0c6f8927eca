"""The hashes of the message ids of records whose bytes were removed within the dedupe window.

Message ids are rebuilt from the records. If the bytes of a record are removed at once (`liftlog
erase --now`), its id must still count until the window is over. The checkpoint file `kept-ids`
holds keyed hashes of such ids. It is durable before the bytes are removed. Without it, or if it is
damaged, these ids are lost.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from liftlog.log.files.checkpoint_file import read_dispensable_file, write_checkpoint_file
from liftlog.log.files.filesystem import FileSystem

KEPT_IDS_NAME = "kept-ids"


class KeptId(NamedTuple):
    """The offset and the timestamp of a removed record, and the hash of its id."""

    offset: int
    timestamp_ns: int
    hashed: bytes


class KeptIds(NamedTuple):
    """`key` is the key of the hashes; `ids` ascend by offset."""

    key: bytes
    ids: tuple[KeptId, ...]


def read_kept_ids(fs: FileSystem, directory: Path) -> KeptIds | None:
    """Return the content of the file; None if it does not exist or is damaged. Raises OSError for a
    temporary failure."""
    content = read_dispensable_file(fs, directory / KEPT_IDS_NAME, KEPT_IDS_NAME)
    if content is None:
        return None
    try:
        ids = [
            KeptId(int(offset), int(stamp_ns), bytes.fromhex(hashed))
            for offset, stamp_ns, hashed in content["ids"]
        ]
        return KeptIds(bytes.fromhex(content["key"]), tuple(ids))
    except (KeyError, TypeError, ValueError):
        return None


def write_kept_ids(fs: FileSystem, directory: Path, kept: KeptIds) -> None:
    """Replace the file; durable on return. Raises OSError."""
    ids = [[one.offset, one.timestamp_ns, one.hashed.hex()] for one in kept.ids]
    content = {"key": kept.key.hex(), "ids": ids}
    write_checkpoint_file(fs, directory / KEPT_IDS_NAME, KEPT_IDS_NAME, content)
