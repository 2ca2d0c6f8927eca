"""The newest metadata that this node has received, in `<data_dir>/known-records`.

A store can be lost, or restored from an older copy, while nodes are down. So each node stores the
newest metadata of streams and nodes that it has received. If a change determines the role of this
node, it is written to disk before the node takes the role. Other changes are written within a
second.

The file also lists the streams of which the directory has held a copy. If the copy of a listed
stream is missing, the copy was lost. If the list is complete, the directory has never held a copy
of any other stream. After damage to the file, or after a run of an older version of liftlog, the
list is incomplete until all streams of the node have been opened.

A read error does not mean that the file is damaged. So after a read error, the file is not changed,
and is read again before anything is written. Until the file can be read, this node changes no
metadata and takes no role.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from liftlog.cluster.record import StreamMetadata
from liftlog.errors import CorruptMetadata, LiftlogError, StorageError
from liftlog.log.files.checkpoint_file import read_checkpoint_file, write_checkpoint_text
from liftlog.log.files.filesystem import FileSystem, storage_errors
from liftlog.server.vitals.rare_warnings import RareWarnings

logger = logging.getLogger("liftlog.server.replication")

KNOWN_RECORDS_NAME = "known-records"
_KIND = "known-records"
_PAUSE_SECONDS = 1.0


class Known(NamedTuple):
    """The content of the file, keyed by names of streams and nodes."""

    streams: dict[str, StreamMetadata]
    nodes: dict[str, bytes]
    """The store's entries of the nodes, as JSON."""
    held: dict[str, str]
    """The streams of which the directory has held a copy, with the incarnation of each."""
    is_held_known: bool
    """True if `held` is complete."""


_NOTHING = Known({}, {}, {}, is_held_known=False)


def read_known_records(fs: FileSystem, data_dir: Path) -> Known:
    """Read the metadata that this node has received in earlier starts. Blocking. Raises
    CorruptMetadata and UnsupportedFormat for the content of the file, StorageError if the file
    cannot be read."""
    try:
        with storage_errors(f"reading {KNOWN_RECORDS_NAME}"):
            content = read_checkpoint_file(fs, data_dir / KNOWN_RECORDS_NAME, _KIND)
    except CorruptMetadata as error:
        if isinstance(error.__cause__, OSError):  # the disk cannot read the file at present
            raise StorageError(error.message) from error
        raise
    if content is None:
        return _NOTHING
    try:
        streams = {
            str(name): StreamMetadata.from_json(text.encode())
            for name, text in content["streams"].items()
        }
        nodes = {str(name): text.encode() for name, text in content["nodes"].items()}
        held = content.get("held")
        is_held_known = held is not None and bool(content.get("held_known", True))
        held = {str(name): str(incarnation) for name, incarnation in (held or {}).items()}
    except (KeyError, AttributeError, TypeError) as error:
        raise CorruptMetadata(f"{KNOWN_RECORDS_NAME} lacks a field: {error!r}") from error
    return Known(streams, nodes, held, is_held_known)


class KnownRecords:
    """The newest metadata that this node has received. Belongs to the event loop. Only `read`,
    which is called first, may run in a thread."""

    def __init__(
        self,
        fs: FileSystem,
        data_dir: Path,
        *,
        on_late: Callable[[dict[str, StreamMetadata]], None] = lambda records: None,
    ) -> None:
        """If `read` could not read the file, `on_late` is called as soon as the file can be read.
        It receives the metadata of the streams in the file."""
        self._fs = fs
        self._data_dir = data_dir
        self._on_late = on_late
        self.problem = ""
        """The reason why the file cannot be read; empty if it could be read. While there is a
        reason, nothing is written."""
        self._streams: dict[str, str] = {}  # each value is JSON text, as in the file
        self._nodes: dict[str, str] = {}
        self._held: dict[str, str] = {}  # incarnations of streams, by name
        self._is_held_known = False
        self._changes = self._written = 0
        self._writing: asyncio.Task[None] | None = None
        self._warn = RareWarnings(logger).warn

    def read(self) -> dict[str, StreamMetadata]:
        """Return the metadata of streams. Blocking. A damaged file counts as missing. If the file
        cannot be read, `problem` contains the reason, and the file is read again later."""
        try:
            return self._take(self._read())
        except StorageError as error:
            self._note_problem(error)
            return {}

    def _read(self) -> Known:
        """Read the file. A damaged file counts as empty. Blocking. Raises StorageError."""
        try:
            return read_known_records(self._fs, self._data_dir)
        except StorageError:
            raise
        except LiftlogError as error:
            logger.warning("known-records-ignored error=%s", error)
            return _NOTHING

    def _take(self, found: Known) -> dict[str, StreamMetadata]:
        """Merge the content of the file with the newer metadata that were noted after the start."""
        self.problem = ""
        streams = {name: _quoted(one.to_json()) for name, one in found.streams.items()}
        nodes = {name: value.decode() for name, value in found.nodes.items()}
        self._streams = {**streams, **self._streams}
        self._nodes = {**nodes, **self._nodes}
        self._held = {**found.held, **self._held}
        self._is_held_known = found.is_held_known
        return found.streams

    def _note_problem(self, error: StorageError) -> None:
        self.problem = error.message
        self._warn("known-records-not-read error=%s", error)

    def note(self, record: StreamMetadata) -> None:
        """Note newer metadata of a stream."""
        self._streams[record.name] = _quoted(record.to_json())
        self._changes += 1

    def note_node(self, node: str, value: bytes | None) -> None:
        """Note the store's entry of a node; None if it was removed."""
        text = None if value is None else value.decode()
        if self._nodes.get(node) == text:
            return
        self._changes += 1
        if text is None:
            del self._nodes[node]
        else:
            self._nodes[node] = text

    async def hold(self, name: str, incarnation: str) -> None:
        """Note that the directory has a copy of this stream. Durable on return. Raises
        StorageError."""
        if self._held.get(name) != incarnation:
            self._held[name] = incarnation
            self._changes += 1
        await self.written()

    def has_held(self, name: str, incarnation: str) -> bool | None:
        """Return True if the directory has held a copy of this stream. Return None if the file does
        not show it."""
        if self._held.get(name) == incarnation:
            return True
        return False if self._is_held_known else None

    def all_held(self, streams: Iterable[StreamMetadata]) -> None:
        """Note that the node has copies of the streams in `streams`, and of no other streams. If
        each of them was noted by `hold`, the list of held streams is complete."""
        if self._is_held_known or self.problem:
            return
        if all(self._held.get(one.name) == one.incarnation for one in streams):
            self._is_held_known = True
            self._changes += 1

    def forget(self, name: str) -> None:
        """Remove a deleted stream, which the store no longer contains."""
        self._held.pop(name, None)
        if self._streams.pop(name, None) is not None:
            self._changes += 1

    @property
    def nodes(self) -> Mapping[str, str]:
        """The store's entries of the nodes, as JSON."""
        return self._nodes

    async def written(self) -> None:
        """Wait until everything that was noted before is durable. One write serves all callers that
        wait. Also raises StorageError while the file cannot be read."""
        wanted = self._changes
        while self.problem or self._written < wanted:
            if self._writing is None:
                self._writing = asyncio.get_running_loop().create_task(self._write())
            await asyncio.shield(self._writing)

    async def run(self) -> None:
        """Write changes that no caller waits for. If the file could not be read, read it again.
        Runs until cancelled."""
        while True:
            await asyncio.sleep(_PAUSE_SECONDS)
            try:
                await self.written()
            except StorageError as error:
                if not self.problem:
                    self._warn("known-records-not-written error=%s", error)

    async def _read_again(self) -> None:
        try:
            found = await asyncio.to_thread(self._read)
        except StorageError as error:
            self._note_problem(error)
            raise
        logger.info("known-records-read streams=%d", len(found.streams))
        self._on_late(self._take(found))

    async def _write(self) -> None:
        try:
            if self.problem:
                await self._read_again()
            changes = self._changes
            nodes, streams = json.dumps(self._nodes, sort_keys=True), self._streams.copy()
            held = json.dumps(self._held, sort_keys=True)
            is_known = self._is_held_known
            await asyncio.to_thread(self._replace, nodes, held, streams, is_held_known=is_known)
            self._written = changes
        finally:
            self._writing = None

    def _replace(
        self, nodes: str, held: str, streams: Mapping[str, str], *, is_held_known: bool
    ) -> None:
        entries = ",".join([f"{json.dumps(name)}:{streams[name]}" for name in sorted(streams)])
        known = json.dumps(is_held_known)
        text = f'{{"held":{held},"held_known":{known},"nodes":{nodes},"streams":{{{entries}}}}}'
        with storage_errors(f"writing {KNOWN_RECORDS_NAME}"):
            write_checkpoint_text(self._fs, self._data_dir / KNOWN_RECORDS_NAME, _KIND, text)


def _quoted(value: bytes) -> str:
    """Return JSON text, encoded as a JSON string. This is done once for each change of an entry.
    The file contains the entries of all streams, and encoding all of them at each write would take
    long."""
    return json.dumps(value.decode())
