"""What this node has seen in the metadata store, in `<data_dir>/known-records`.

A store can be lost, or restored from an older copy, while nodes are down. So each of them keeps the
newest records that it has seen, those of the nodes with them. What a record makes of this node is
on its disk before the node acts on it; the rest follows within a second.

The file also names the streams that the directory has held a copy of: if the copy of one is
missing, it was lost, and otherwise it never was there.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from liftlog.cluster.record import StreamRecord
from liftlog.errors import CorruptMetadata, LiftlogError, StorageError
from liftlog.log.checkpoint_file import read_checkpoint_file, write_checkpoint_text
from liftlog.log.filesystem import FileSystem, storage_errors

logger = logging.getLogger("liftlog.server.replication")

KNOWN_RECORDS_NAME = "known-records"
_KIND = "known-records"
_PAUSE_SECONDS = 1.0


class Known(NamedTuple):
    """The content of the file, by names of streams and nodes."""

    streams: dict[str, StreamRecord]
    nodes: dict[str, bytes]
    """What the store said of them."""
    held: dict[str, str] | None
    """The incarnations of the streams that the directory has held a copy of; None in the file of a
    version of liftlog that did not note it."""


def read_known_records(fs: FileSystem, data_dir: Path) -> Known:
    """What the node has seen in earlier starts. Blocking. Raises CorruptMetadata,
    UnsupportedFormat, StorageError."""
    with storage_errors(f"reading {KNOWN_RECORDS_NAME}"):
        content = read_checkpoint_file(fs, data_dir / KNOWN_RECORDS_NAME, _KIND)
    if content is None:
        return Known({}, {}, None)
    try:
        streams = {
            str(name): StreamRecord.from_json(text.encode())
            for name, text in content["streams"].items()
        }
        nodes = {str(name): text.encode() for name, text in content["nodes"].items()}
        held = content.get("held")
        if held is not None:
            held = {str(name): str(incarnation) for name, incarnation in held.items()}
    except (KeyError, AttributeError, TypeError) as error:
        raise CorruptMetadata(f"{KNOWN_RECORDS_NAME} lacks a field: {error!r}") from error
    return Known(streams, nodes, held)


class KnownRecords:
    """Belongs to the event loop, but for `read`."""

    def __init__(self, fs: FileSystem, data_dir: Path) -> None:
        self._fs = fs
        self._data_dir = data_dir
        self._streams: dict[str, str] = {}  # as they stand in the file
        self._nodes: dict[str, str] = {}
        self._held: dict[str, str] = {}  # incarnations of streams, by name
        self._is_held_known = False
        self._changes = self._written = 0
        self._writing: asyncio.Task[None] | None = None

    def read(self) -> dict[str, StreamRecord]:
        """The records of streams. Blocking. A file that cannot be read counts as none: it is only
        missed if the store forgets something as well."""
        try:
            streams, nodes, held = read_known_records(self._fs, self._data_dir)
        except LiftlogError as error:
            logger.warning("known-records-ignored error=%s", error)
            return {}
        self._is_held_known = held is not None
        self._held = held or {}
        self._streams = {name: _quoted(one.to_json()) for name, one in streams.items()}
        self._nodes = {name: value.decode() for name, value in nodes.items()}
        return streams

    def note(self, record: StreamRecord) -> None:
        """A newer record."""
        self._streams[record.name] = _quoted(record.to_json())
        self._changes += 1

    def note_node(self, node: str, value: bytes | None) -> None:
        """What the store says of a node, None when it was removed."""
        text = None if value is None else value.decode()
        if self._nodes.get(node) == text:
            return
        self._changes += 1
        if text is None:
            del self._nodes[node]
        else:
            self._nodes[node] = text

    async def hold(self, name: str, incarnation: str) -> None:
        """The directory has a copy of that stream from now on. Durable on return. Raises
        StorageError."""
        if self._held.get(name) != incarnation:
            self._held[name] = incarnation
            self._changes += 1
            await self.written()

    def has_held(self, name: str, incarnation: str) -> bool | None:
        """Whether the directory has had a copy of that stream; None: an older version of liftlog
        has used the directory before, and did not note it."""
        if self._held.get(name) == incarnation:
            return True
        return False if self._is_held_known else None

    def forget(self, name: str) -> None:
        """The record of a stream that was deleted is not in the store any more."""
        self._held.pop(name, None)
        if self._streams.pop(name, None) is not None:
            self._changes += 1

    @property
    def nodes(self) -> Mapping[str, str]:
        """What the store said of the nodes, as JSON."""
        return self._nodes

    async def written(self) -> None:
        """Return when all that was noted until now is durable; one write for all who wait. Raises
        StorageError."""
        wanted = self._changes
        while self._written < wanted:
            if self._writing is None:
                self._writing = asyncio.get_running_loop().create_task(self._write())
            await asyncio.shield(self._writing)

    async def run(self) -> None:
        """Write what no one waits for, until cancelled."""
        while True:
            await asyncio.sleep(_PAUSE_SECONDS)
            try:
                await self.written()
            except StorageError as error:
                logger.warning("known-records-not-written error=%s", error)

    async def _write(self) -> None:
        try:
            changes = self._changes
            nodes, streams = json.dumps(self._nodes, sort_keys=True), self._streams.copy()
            held = json.dumps(self._held, sort_keys=True)
            await asyncio.to_thread(self._replace, nodes, held, streams)
            self._written = changes
        finally:
            self._writing = None

    def _replace(self, nodes: str, held: str, streams: Mapping[str, str]) -> None:
        entries = ",".join([f"{json.dumps(name)}:{streams[name]}" for name in sorted(streams)])
        text = f'{{"held":{held},"nodes":{nodes},"streams":{{{entries}}}}}'
        with storage_errors(f"writing {KNOWN_RECORDS_NAME}"):
            write_checkpoint_text(self._fs, self._data_dir / KNOWN_RECORDS_NAME, _KIND, text)


def _quoted(value: bytes) -> str:
    """JSON as a text in JSON. Made once for each record: the file holds those of all streams."""
    return json.dumps(value.decode())
