"""New replicated streams: chooses their nodes, and stores their first metadata records."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from liftlog.cluster import transitions
from liftlog.cluster.placement import Candidate, place
from liftlog.cluster.record import StreamMetadata
from liftlog.errors import Conflict, InvalidArgument, LiftlogError
from liftlog.server.metadata.mirror import Mirror
from liftlog.server.streams.settings import differences_from_file, record_settings
from liftlog.settings import StreamSettings

logger = logging.getLogger("liftlog.server.replication")

_LOOK_AGAIN_SECONDS = 0.1
_AT_ONCE = 64


def candidates(mirror: Mirror, coming: Iterable[Sequence[str]] = ()) -> list[Candidate]:
    """Return the nodes, each with its number of replicas, according to the newest records on this
    node. A moving stream counts for its target nodes. `coming` are the replicas of streams whose
    records are being stored."""
    directory = mirror.directory
    held, led = Counter[str](), Counter[str]()
    for record in mirror.records.values():
        if not record.deleted:
            held.update(record.target)
            led[record.target[0]] += 1
    for replicas in coming:
        held.update(replicas)
        led[replicas[0]] += 1
    return [
        Candidate(
            node,
            info.zone,
            replicas=held[node],
            leads=led[node],
            available=node in directory.live and not info.is_leaving,
        )
        for node, info in sorted(directory.nodes.items())
    ]


class NewStreams:
    """Creates replicated streams. Belongs to the event loop. Many streams can be created at the
    same time."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._coming: dict[str, tuple[str, ...]] = {}
        """Replicas of streams whose records are being stored, by incarnation."""

    async def create(
        self, name: str, settings: StreamSettings, *, origin: str, is_system: bool = False
    ) -> StreamMetadata:
        """Create a stream on nodes that are live and not drained. Returns its record, or the record
        that already exists. Raises Conflict if there are too few nodes. Raises
        MetadataUnavailable."""
        directory = self._mirror.directory
        nodes = candidates(self._mirror, self._coming.values())
        try:
            replicas = place(nodes, settings.replicas)
        except Conflict:
            raise Conflict(
                f"stream {name} is to have {settings.replicas} replicas, and there are "
                + takers_text(nodes),
                hint="start the other nodes; `liftlog cluster status` shows them",
            ) from None
        record = transitions.create(
            name,
            secrets.token_hex(16),
            record_settings(settings, origin),
            replicas,
            starts={node: directory.nodes[node].start for node in replicas},
            system=is_system,
        )
        self._coming[record.incarnation] = replicas
        try:
            return await self._mirror.create(record)
        finally:
            del self._coming[record.incarnation]

    async def create_for_client(self, name: str, settings: StreamSettings) -> StreamMetadata:
        """Create a stream like `create`. If there are too few nodes, the store is read first,
        because this node may not have received the record of a new node yet."""
        try:
            return await self.create(name, settings, origin="api")
        except Conflict:
            await self._mirror.load()
            return await self.create(name, settings, origin="api")

    async def create_configured(self, streams: Mapping[str, StreamSettings]) -> None:
        """Create the missing streams of the configuration file as soon as there are enough nodes
        and the metadata can be read. All nodes try this, and the fastest node creates the stream.
        Existing streams are not changed."""
        missing = dict(streams)
        told: set[str] = set()
        while True:
            for name in list(missing):
                record = self._mirror.records.get(name)
                if record is not None and not record.deleted:
                    _tell_differences(record, missing.pop(name))
            if not missing:
                return
            some = list(missing)[:_AT_ONCE]
            made = await asyncio.gather(
                *(self.create(name, missing[name], origin="config") for name in some),
                return_exceptions=True,
            )
            for name, result in zip(some, made, strict=True):
                if isinstance(result, StreamMetadata):
                    del missing[name]
                elif not isinstance(result, LiftlogError):
                    raise result
                elif isinstance(result, InvalidArgument):
                    del missing[name]  # a retry would fail with the same error
                    logger.error("stream-not-created stream=%s error=%s", name, result)
                else:
                    missing[name] = missing.pop(name)  # try the other streams first
                    if name not in told:
                        logger.warning("stream-waits stream=%s reason=%s", name, result)
                        told.add(name)
            if not any(isinstance(one, StreamMetadata) for one in made):
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)


def _tell_differences(record: StreamMetadata, configured: StreamSettings) -> None:
    try:
        found = differences_from_file(record, configured)
    except InvalidArgument:
        return  # written by a newer version
    if found:
        logger.warning(
            "file-not-applied stream=%s reason=%s",
            record.name,
            "; ".join(f"{path}: {have} here, {want} in the file" for path, have, want in found),
        )


def takers_text(nodes: Sequence[Candidate]) -> str:
    """Return the text for an error message: the number of nodes that can accept replicas, and the
    reasons why the other nodes cannot."""
    takers = [one.node for one in nodes if one.available]
    others = [one.node for one in nodes if not one.available]
    text = f"{len(takers)} live nodes that take any: {', '.join(takers) or 'none'}"
    return text + (f" ({', '.join(others)} down or drained)" if others else "")
