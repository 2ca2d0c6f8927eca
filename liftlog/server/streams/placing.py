"""New replicated streams: which nodes hold them, and their first records."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping

from liftlog.cluster import transitions
from liftlog.cluster.record import StreamRecord
from liftlog.errors import Conflict, MetadataUnavailable
from liftlog.server.replication.membership import Member
from liftlog.server.replication.mirror import Mirror
from liftlog.server.streams.settings import record_settings
from liftlog.settings import StreamSettings

logger = logging.getLogger("liftlog.server.replication")

_LOOK_AGAIN_SECONDS = 0.1


async def create(
    mirror: Mirror, member: Member, name: str, settings: StreamSettings, *, origin: str
) -> StreamRecord:
    """The record of a new stream, on nodes that are live; the one that exists if there is one.
    Raises Conflict when there are too few nodes, MetadataUnavailable."""
    directory = mirror.directory
    counts = dict.fromkeys(sorted(directory.live & directory.nodes.keys()), 0)
    for record in mirror.records.values():
        for node in record.replicas:
            if node in counts and not record.deleted:
                counts[node] += 1
    chosen = sorted(counts, key=lambda node: (counts[node], node != member.name, node))
    if len(chosen) < settings.replicas:
        raise Conflict(
            f"stream {name} is to have {settings.replicas} replicas, and there are "
            f"{len(chosen)} live nodes: {', '.join(chosen)}",
            hint="start the other nodes; `liftlog cluster status` shows them",
        )
    replicas = chosen[: settings.replicas]
    record = transitions.create(
        name,
        secrets.token_hex(16),
        record_settings(settings, origin),
        replicas,
        starts={node: directory.nodes[node].start for node in replicas},
    )
    return await mirror.create(record)


async def create_configured(
    mirror: Mirror, member: Member, streams: Mapping[str, StreamSettings]
) -> None:
    """Create the streams of the configuration file that do not exist, as soon as there are
    enough nodes. Each node does so; the first one is right."""
    missing = dict(streams)
    told: set[str] = set()
    while missing:
        for name, settings in list(missing.items()):
            record = mirror.records.get(name)
            if record is not None and not record.deleted:
                del missing[name]
                continue
            try:
                await create(mirror, member, name, settings, origin="config")
                del missing[name]
            except (Conflict, MetadataUnavailable) as error:
                if name not in told:
                    logger.warning("stream-waits stream=%s reason=%s", name, error)
                    told.add(name)
        await asyncio.sleep(_LOOK_AGAIN_SECONDS)
