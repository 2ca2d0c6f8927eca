"""Asks the daemon of a node for the high watermarks of its replicas, for a backup.

The files of the node contain older values, up to half a minute old. The module finds the daemon by
its data directory. The leader of each stream reports the stream's high watermark, and the backup
waits until this node's replica has reached it. `_offsets` is queried first, so that in the backup
no checkpoint is beyond the end of its stream.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from liftlog.cli.lib.options import connect_at, connect_to_server, shared_value
from liftlog.client import ClusterInfo, ClusterStream, StreamInfo, SyncClient
from liftlog.errors import LiftlogError
from liftlog.log.backup import Committed
from liftlog.log.backup.creating import OFFSETS_STREAM
from liftlog.log.data_dir import ADDRESSES_NAME, STREAMS_NAME
from liftlog.log.files.filesystem import FileSystem, ReadOnlyFileSystem
from liftlog.log.files.manifest import read_manifest
from liftlog.server.metadata.known_records import read_known_records
from liftlog.server.metadata.membership import NodeFile, read_node_file

_LOOK_SECONDS = 0.05


@dataclass(slots=True)
class Ends:
    """The answers of the daemon. `committed` contains the state of each replica. `elsewhere` lists
    the streams of the cluster without a replica on this node, each with the nodes that have one."""

    node: str = ""
    committed: dict[str, Committed] = field(default_factory=dict)
    elsewhere: dict[str, list[str]] = field(default_factory=dict)


def ask_ends(data_dir: Path, names: Collection[str], wait_seconds: float) -> Ends:
    """Ask for the high watermarks of the replicas among the streams `names`; a daemon without a
    cluster has no replicas. Raises CorruptMetadata, OSError. If the daemon does not answer,
    `Committed` contains the reason."""
    fs = ReadOnlyFileSystem()
    file = read_node_file(fs, data_dir)
    if file is None:
        return Ends()
    replicas = [name for name in sorted(names) if _is_replica(fs, data_dir, name)]
    deadline = time.monotonic() + wait_seconds
    reason = "it does not run"
    for server in _servers(data_dir):
        try:
            with _connect(server, wait_seconds) as client:
                info = client.cluster()
                if (info.cluster_id, info.node) == (file.cluster_id, file.node):
                    return _ask(client, info, replicas, deadline)
                reason = f"another one answers at {server or 'the server that was named'}"
        except LiftlogError as error:
            reason = error.message
    behind = (
        f"the daemon could not be asked how far it is committed ({reason}), and what is stored of "
        "that may be half a minute old"
    )
    alone = _only_here(fs, data_dir, file)
    return Ends(
        file.node, {name: Committed(behind=behind, is_only=name in alone) for name in replicas}
    )


def _is_replica(fs: FileSystem, data_dir: Path, name: str) -> bool:
    """Return True if the stream is a replica. Returns False for an unreadable manifest, which the
    backup itself reports."""
    with suppress(LiftlogError):
        manifest = read_manifest(fs, data_dir / STREAMS_NAME / name)
        return manifest is not None and manifest.replicated
    return False


def _servers(data_dir: Path) -> Iterator[str]:
    """Yield the addresses of the daemon of this directory; "" stands for the one that the user
    named."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        yield from map(str, json.loads((data_dir / ADDRESSES_NAME).read_bytes())["pull"])
    if shared_value("server", "LIFTLOG_SERVER"):
        yield ""


def _connect(server: str, seconds: float) -> SyncClient:
    seconds = max(seconds, 1.0)
    limits: dict[str, Any] = {
        "connect_timeout": seconds,
        "request_timeout": seconds,
        "reconnect_for": 0.0,
    }
    return connect_at(server, **limits) if server else connect_to_server(**limits)


def _only_here(fs: FileSystem, data_dir: Path, file: NodeFile) -> set[str]:
    """Return the streams without a replica on another node, according to this node's metadata."""
    with suppress(LiftlogError):
        records = read_known_records(fs, data_dir).streams
        return {name for name, one in records.items() if one.members == (file.node,)}
    return set()


def _ask(client: SyncClient, info: ClusterInfo, names: list[str], deadline: float) -> Ends:
    here = [one.name for one in info.replicated if one.high_watermark is not None]
    found = Ends(info.node)
    found.elsewhere = {
        one.name: one.replicas
        for one in info.replicated
        if info.node not in one.replicas and one.name not in (*here, *names)
    }
    for some in ([OFFSETS_STREAM], [name for name in names if name != OFFSETS_STREAM]):
        question = _Question(client, [name for name in some if name in names])
        found.committed |= question.answered(deadline)
    return found


class _Question:
    """One query for the high watermarks of some streams, and of their replicas on this node."""

    def __init__(self, client: SyncClient, names: list[str]) -> None:
        self._client = client
        self._wanted: dict[str, StreamInfo] = {}
        self._reasons = dict.fromkeys(names, "")
        self._hopeless: set[str] = set()

    def answered(self, deadline: float) -> dict[str, Committed]:
        """Wait until each replica on this node has reached its stream's high watermark, and return
        the answers. At `deadline`, return them with the replicas that are still behind. Raises the
        errors of a connection."""
        while True:
            self._describe()
            streams = self._client.cluster().replicated if self._reasons else []
            here = {one.name: one for one in streams}
            found = {name: self._judged(name, here.get(name)) for name in self._reasons}
            waits = [name for name, one in found.items() if one.behind]
            if not {*waits} - self._hopeless or time.monotonic() >= deadline:
                return found
            time.sleep(_LOOK_SECONDS)

    def _describe(self) -> None:
        for name in self._reasons.keys() - self._wanted.keys() - self._hopeless:
            try:
                self._wanted[name] = self._client.describe_stream(name)
            except LiftlogError as error:
                self._reasons[name] = (
                    f"the stream's leader does not say how far it is committed: {error.message}"
                )
                if not error.retriable:
                    self._hopeless.add(name)

    def _judged(self, name: str, here: ClusterStream | None) -> Committed:
        info = self._wanted.get(name)
        if info is None:
            return Committed(behind=self._reasons[name])
        # With this policy, messages are acked before they are committed.
        by_leader = info.settings.get("ack_policy") == "leader"
        wanted = info.log_end_offset if by_leader else info.high_watermark
        end = None if here is None else here.high_watermark
        if end is None:
            return Committed(behind="the daemon has not opened its replica")
        if end < wanted:
            behind = f"the replica here is committed up to offset {end}, the stream up to {wanted}"
            return Committed(info.incarnation, end, behind)
        return Committed(info.incarnation, end)
