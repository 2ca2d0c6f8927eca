"""This node's membership of its cluster: its identity, its current start, and the other nodes.

`<data_dir>/node` names the node that the directory belongs to. The store's entry `node.<name>`
contains the same information. By comparing the two, the daemon detects a directory that was
restored to an older state, swapped or emptied. In that case no earlier confirmation of this node
counts.
"""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from liftlog import __version__
from liftlog.cluster.store import CLUSTER_KEY, CasLost, CasUnknown, Entry, MetaStore
from liftlog.errors import ConfigError, Conflict, CorruptMetadata
from liftlog.log.data_dir import STREAMS_NAME, DataDir
from liftlog.log.files.checkpoint_file import read_checkpoint_file, write_checkpoint_file
from liftlog.log.files.filesystem import FileSystem, storage_errors
from liftlog.log.files.identity import DirectoryIdentity
from liftlog.names import is_stream_name
from liftlog.server.metadata.known_records import KNOWN_RECORDS_NAME, read_known_records

CONSUMERS_WITH_ACKS = "consumers_with_acks"
"""Feature of a node that stores the states of consumers with acks."""
FEATURES = (CONSUMERS_WITH_ACKS,)

logger = logging.getLogger("liftlog.server.replication")

NODE_FILE_NAME = "node"
_KIND = "node"
_FORMAT_VERSION = 1
_ATTEMPTS = 20
_MAX_NAMED = 5


def value_of(entry: Entry) -> dict[str, Any]:
    """Return the JSON object of an entry. Raises CorruptMetadata."""
    try:
        value = json.loads(entry.value)
    except (ValueError, RecursionError) as error:
        raise CorruptMetadata(
            f"the metadata store holds something else than JSON: {error}"
        ) from error
    if not isinstance(value, dict):
        raise CorruptMetadata("the metadata store holds something else than a JSON object")
    return value


def to_bytes(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class NodeFile:
    """The content of `<data_dir>/node`.

    `start` is the last start number that is certainly in the store. `claimed` is the start number
    that was about to be stored. `born` is the start at which the directory was first used, or was
    first used after a restore to an older state.
    """

    cluster_id: str
    node: str
    data_id: str
    start: int
    claimed: int
    born: int = 0


def read_node_file(fs: FileSystem, data_dir: Path) -> NodeFile | None:
    """Return the content of the file; None if the directory belongs to no node. Raises
    CorruptMetadata, OSError."""
    content = read_checkpoint_file(fs, data_dir / NODE_FILE_NAME, _KIND)
    if content is None:
        return None
    try:
        known = {name: content[name] for name in NodeFile.__slots__ if name != "born"}
        known["born"] = content.get("born", 0)
    except KeyError as error:
        raise CorruptMetadata(f"{NODE_FILE_NAME} lacks {error}") from error
    return NodeFile(**known)


def write_node_file(fs: FileSystem, data_dir: Path, content: NodeFile) -> None:
    """Write the file. Durable on return. Raises OSError."""
    write_checkpoint_file(fs, data_dir / NODE_FILE_NAME, _KIND, asdict(content))


def refuse_node(data_dir: DataDir) -> None:
    """Raise ConfigError if the directory belongs to a node. Called by a daemon without a cluster.

    Without this check, the daemon would assign the offsets of replicas to other messages than the
    cluster does. Blocking. Also raises StorageError, CorruptMetadata.
    """
    with storage_errors("reading the node file"):
        file = read_node_file(data_dir.environment.fs, data_dir.path)
    if file is not None:
        raise ConfigError(
            f"the data directory {data_dir.path} belongs to node {file.node} of a cluster, and the "
            "settings have no section cluster",
            hint=f"start the daemon with the section cluster of node {file.node}, or give this "
            "daemon its own data_dir. A backup of the directory can be restored for a single "
            "daemon: `liftlog docs how-to/backup-cluster`",
        )


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node as the store describes it."""

    name: str
    start: int
    data_id: str
    address: str
    version: str = ""
    zone: str = ""
    web: str = ""
    draining: bool = False
    stopping: bool = False
    """True if the process of the node has begun to stop. Until its next start, the node gets no
    leadership and no replicas."""
    features: tuple[str, ...] = ()

    @classmethod
    def from_value(cls, name: str, value: Mapping[str, Any]) -> NodeInfo:
        """Parse the store's entry of a node. Raises CorruptMetadata."""
        try:
            return cls(
                name=name,
                start=int(value["start"]),
                data_id=str(value["data_id"]),
                address=str(value["address"]),
                version=str(value.get("version", "")),
                zone=str(value.get("zone", "")),
                web=str(value.get("web", "")),
                draining=bool(value.get("draining", False)),
                stopping=bool(value.get("stopping", False)),
                features=tuple(value.get("features", ())),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptMetadata(f"the record of node {name} lacks a field: {error!r}") from error

    @property
    def is_leaving(self) -> bool:
        """True if other nodes should lead in place of this node, permanently or for a limited
        time."""
        return self.draining or self.stopping


@dataclass(slots=True)
class Directory:
    """The nodes in the store, and the nodes that have a session."""

    nodes: dict[str, NodeInfo] = field(default_factory=dict)
    live: set[str] = field(default_factory=set)
    stopping: frozenset[str] = frozenset()
    """The nodes that have begun to stop."""

    def note(self, key: str, entry: Entry | None) -> bool:
        """Note the store's entry of a key that begins with `node.` or `live.`. Returns True if the
        entry has changed; a renewal of a session is not a change. Raises CorruptMetadata."""
        kind, _, name = key.partition(".")
        if kind == "live":
            was_live = name in self.live
            (self.live.discard if entry is None else self.live.add)(name)
            return was_live != (name in self.live)
        if kind != "node":
            return False
        known = self.nodes.get(name)
        if entry is not None:
            self.nodes[name] = NodeInfo.from_value(name, value_of(entry))
        elif known is not None:
            del self.nodes[name]
        self.stopping = frozenset(one.name for one in self.nodes.values() if one.stopping)
        return known != self.nodes.get(name)


@dataclass(frozen=True, slots=True)
class Member:
    """This node, after it has joined the cluster.

    `is_same` means that the data directory is the same as at the last start. Such a directory has
    all records that were confirmed during that start, provided that recovery finds them. The
    directory may lack records that were confirmed before the start `born`.
    """

    cluster_id: str
    name: str
    start: int
    is_same: bool
    born: int = 0
    record: Mapping[str, Any] = field(default_factory=dict)
    """The entry `node.<name>` that this start has stored."""
    known_start: int = 0
    """The last start before this one that the directory has recorded."""

    def had(self, start: int) -> bool:
        """Return True if the directory contains the records that this node confirmed during the
        start with this number, provided that recovery finds them."""
        return self.born <= start <= self.known_start or start == self.start


async def join(
    store: MetaStore,
    fs: FileSystem,
    data_dir: Path,
    *,
    node: str,
    address: str,
    zone: str = "",
    web: str = "",
    may_create: bool = True,
    may_bring_streams: bool = False,
    identity: DirectoryIdentity | None = None,
) -> Member:
    """Call `identify` and `register`. The caller has ensured that no other process has the name."""
    file = await identify(
        store,
        fs,
        data_dir,
        node=node,
        may_create=may_create,
        may_bring_streams=may_bring_streams,
    )
    return await register(
        store, fs, data_dir, file, address=address, zone=zone, web=web, identity=identity
    )


async def identify(
    store: MetaStore,
    fs: FileSystem,
    data_dir: Path,
    *,
    node: str,
    may_create: bool = True,
    may_bring_streams: bool = False,
) -> NodeFile:
    """Check that the directory belongs to this node of the store's cluster, or to no node yet.

    If `may_create` is true, an empty store becomes the store of a new cluster, provided that the
    directory belongs to no node. If `may_bring_streams` is true, a directory that belongs to no
    node may contain streams; the caller adopts them.

    Raises ConfigError if the directory belongs to another node or cluster, or if the store is
    unexpectedly empty. Also raises MetaStoreError, StorageError.
    """
    with storage_errors("reading the node file"):
        file = read_node_file(fs, data_dir)
    if file is None and not may_bring_streams and fs.exists(data_dir / KNOWN_RECORDS_NAME):
        raise ConfigError(
            f"the data directory {data_dir} belonged to a node of a cluster, and its file "
            f"{NODE_FILE_NAME} is gone",
            hint=f"put the file back, or start node {node} with an empty data_dir: it fetches its "
            "replicas from the other nodes. A stream with one replica stays without a leader then, "
            "and needs this directory",
        )
    if file is None and not may_bring_streams and (streams := _streams_in(fs, data_dir)):
        raise ConfigError(
            f"the data directory has streams of a single daemon: {', '.join(streams)}",
            hint="`liftlog cluster init -c FILE --adopt` makes this daemon the first node of a new "
            "cluster; any other node begins with an empty data_dir",
        )
    cluster_id = await _cluster_id(store, may_create=may_create and file is None)
    if not cluster_id:
        raise ConfigError(
            "the metadata store is empty"
            + (
                ""
                if file is None
                else f", and the data directory belongs to cluster {file.cluster_id}"
            ),
            hint="for a new cluster, run `liftlog cluster init -c FILE` first"
            if file is None
            else "the metadata was lost: restore it from a backup, or check cluster.store. Without "
            "a backup, `liftlog cluster init -c FILE --again` makes the nodes store the metadata "
            "that they know",
        )
    if file is not None and file.node != node:
        raise ConfigError(
            f"the data directory belongs to node {file.node}, not to node {node}",
            hint="give each node its own data_dir, and check cluster.node",
        )
    if file is not None and file.cluster_id != cluster_id:
        raise another_cluster(cluster_id, file.cluster_id)
    return file or NodeFile(cluster_id, node, secrets.token_hex(16), 0, 0)


async def register(
    store: MetaStore,
    fs: FileSystem,
    data_dir: Path,
    file: NodeFile,
    *,
    address: str,
    zone: str = "",
    web: str = "",
    identity: DirectoryIdentity | None = None,
) -> Member:
    """Increase the start number of the node, in the store and in its directory.

    Even if the process stops at any moment, the next start recognises the directory. Raises
    Conflict if another process registers the same node. Also raises MetaStoreError, StorageError.
    """
    cluster_id, node = file.cluster_id, file.node
    for _ in range(_ATTEMPTS):
        entry = await store.get(f"node.{node}")
        value = {} if entry is None else value_of(entry)
        registered = value.get("start", 0)
        if not isinstance(registered, int):
            raise CorruptMetadata(f"the record of node {node} has the start {registered!r}")
        is_same = _is_same_directory(file, None if entry is None else value, identity)
        known_start = max(file.start, file.claimed)
        start = max(registered, file.start, file.claimed) + 1
        # The claim is written first. So if the store has the number, the directory also has it.
        born = file.born if is_same else start
        stored = (file.start if entry is None else registered) if is_same else 0
        claim = NodeFile(cluster_id, node, file.data_id, stored, start, born)
        with storage_errors("writing the node file"):
            write_node_file(fs, data_dir, claim)
        taken = None if identity is None else identity.taken
        described = {
            **value,
            "v": _FORMAT_VERSION,
            "start": start,
            "data_id": file.data_id,
            "address": address,
            "zone": zone,
            "web": web,
            "version": __version__,
            "features": list(FEATURES),
            "draining": value.get("draining", False),
            "stopping": False,
            "directory": None if taken is None else taken._asdict(),
        }
        try:
            await store.cas(
                f"node.{node}", to_bytes(described), 0 if entry is None else entry.revision
            )
        except (CasLost, CasUnknown):
            file = claim
            continue
        with storage_errors("writing the node file"):
            joined = NodeFile(cluster_id, node, file.data_id, start, start, born)
            write_node_file(fs, data_dir, joined)
        if not is_same and registered:
            logger.warning("node-directory-is-another node=%s start=%d", node, start)
        return Member(cluster_id, node, start, is_same, born, described, known_start)
    raise Conflict(
        f"node {node} cannot register itself: the record changes all the time",
        hint="two daemons may run as the same node: give each its own cluster.node",
    )


def _is_same_directory(
    file: NodeFile, value: Mapping[str, Any] | None, identity: DirectoryIdentity | None
) -> bool:
    """Return True if this is the directory that the node used last. `value` is the store's entry of
    the node; None if there is no entry.

    The method compares the numbers of starts:

    - The store has more starts than the directory: the node has used another directory.
    - The store has fewer starts: the store was restored to an older state.
    - The store has no start: it was created again. The metadata of the streams then show whether
      the directory is an older copy (`Member.had`).
    """
    if value is None:
        return file.start > 0
    registered = value.get("start", 0)
    if value.get("data_id") != file.data_id:
        return False
    if registered > file.start and registered != file.claimed:
        return False
    return identity is None or not identity.is_copy(registered, value.get("directory"))


def _streams_in(fs: FileSystem, data_dir: Path) -> list[str]:
    """Return the names of some streams in a data directory, without the daemon's own streams."""
    directory = data_dir / STREAMS_NAME
    with storage_errors("listing the streams"):
        names = fs.list_directory(directory) if fs.exists(directory) else []
    return sorted(filter(is_stream_name, names))[:_MAX_NAMED]


async def _cluster_id(store: MetaStore, *, may_create: bool) -> str:
    """Return the id of the cluster; "" if there is none. If `may_create` is true, choose an id for
    a new store."""
    entry = await store.get_newest(CLUSTER_KEY)
    if entry is None and may_create:
        await create_cluster(store)
        entry = await store.get_newest(CLUSTER_KEY)
    if entry is None:
        return ""
    try:
        return str(value_of(entry)["cluster_id"])
    except KeyError as error:
        raise CorruptMetadata("the record of the cluster lacks its id") from error


async def create_cluster(store: MetaStore, cluster_id: str = "") -> bool:
    """Store the id of the cluster, or a random id if none is given. Returns False if the store
    already has an id. Raises CasUnknown, StoreUnavailable."""
    cluster_id = cluster_id or secrets.token_hex(16)
    drawn = {"v": 1, "cluster_id": cluster_id, "created_ns": time.time_ns()}
    try:
        await store.cas(CLUSTER_KEY, to_bytes(drawn), 0)
    except CasLost:
        return False
    return True


def another_cluster(found: str, own: str) -> ConfigError:
    """Return the error for a store that belongs to the cluster `found`, although the data directory
    belongs to the cluster `own`."""
    return ConfigError(
        f"the metadata store is that of cluster {found}, and the data directory belongs to cluster "
        f"{own}",
        hint="check cluster.store, cluster.name and nats.servers. If they are right, the store was "
        "lost and `liftlog cluster init` has created a new store: `liftlog cluster init -c FILE "
        "--again` assigns the new store to this cluster",
    )


async def take_back(
    store: MetaStore, fs: FileSystem, data_dir: Path, own: str, entry: Entry
) -> None:
    """Assign a store to the cluster `own`. The store of that cluster was lost, and the present
    store was then created by mistake for a new cluster.

    Raises ConfigError if the store lists a node that this data directory does not know, or knows
    with another `data_id`: a node that was not in the cluster may have used the store. Also
    raises MetaStoreError, CorruptMetadata, StorageError.
    """
    with storage_errors("reading the node file"):
        file = read_node_file(fs, data_dir)
    known = {} if file is None else {file.node: file.data_id}
    with contextlib.suppress(CorruptMetadata):
        for name, text in read_known_records(fs, data_dir)[1].items():
            known[name] = str(json.loads(text).get("data_id"))
    found = str(value_of(entry).get("cluster_id"))
    strangers = [
        key.removeprefix("node.")
        for key, node in (await store.scan("node.")).items()
        if value_of(node).get("data_id") != known.get(key.removeprefix("node."))
    ]
    if strangers:
        raise ConfigError(
            f"the metadata store is that of cluster {found}, which has nodes that do not belong to "
            f"cluster {own}: {', '.join(sorted(strangers)[:_MAX_NAMED])}",
            hint="check cluster.store, cluster.name and nats.servers. If the store was made by "
            "mistake, stop these nodes, delete the store, and run the command again",
        )
    changed = {**value_of(entry), "cluster_id": own}
    await store.cas(CLUSTER_KEY, to_bytes(changed), entry.revision)
    logger.warning("metadata-store-taken-back cluster=%s was=%s", own, found)


def cluster_of(fs: FileSystem, data_dir: Path, node: str) -> str:
    """Return the id of the cluster that the directory of this node belongs to. Blocking. Raises
    ConfigError if the directory belongs to no cluster, or to another node. Also raises
    CorruptMetadata, StorageError."""
    with storage_errors("reading the node file"):
        file = read_node_file(fs, data_dir)
    if file is None or file.node != node:
        raise ConfigError(
            f"the data directory {data_dir} does not belong to node {node} of a cluster",
            hint="name the configuration of a node that was in the cluster, on its machine",
        )
    return file.cluster_id
