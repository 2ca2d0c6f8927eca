"""Shows the cluster from this node's view: the nodes, and the state of each replicated stream.
Streams with problems come first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any
from urllib.parse import quote

from liftlog.cluster.record import StreamMetadata
from liftlog.server.metadata.membership import NodeInfo
from liftlog.server.node.cluster_catalog import node_of
from liftlog.server.node.replicated import ReplicatedStreams
from liftlog.server.replication.serving import ServedStream
from liftlog.server.web.asking import Asked, Shown

MAX_STREAMS = 200
"""Maximum number of streams shown; a search finds other streams."""
NO_LEADER, TOO_FEW, MISSING, IN_SYNC = "no leader", "too few in sync", "under-replicated", "in sync"
_STATES = (NO_LEADER, TOO_FEW, MISSING, IN_SYNC)


async def cluster(asked: Asked) -> Shown:
    streams, wanted = node_of(asked.parts.broker), asked.text("q")
    if streams is None:
        nothing: dict[str, Any] = {"cluster_id": "", "nodes": [], "streams": [], "shape": []}
        return Shown("Cluster", nothing, {"q": ""})
    led, followed = streams.led, streams.followed
    lags = {name: {streams.member.name: one.lag} for name, one in followed.items()}
    readable = [
        record
        for name, record in streams.mirror.records.items()
        if not record.deleted and asked.may("read", name)
    ]
    rows = [
        standing(streams, record, _lags(led.get(record.name), lags.get(record.name, {})))
        for record in readable
    ]
    matching = [row for row in rows if wanted.lower() in row["name"].lower()]
    matching.sort(key=lambda row: (_STATES.index(row["state"]), row["name"]))
    shown = matching[:MAX_STREAMS]
    nodes = [_node(streams, one, readable) for _, one in sorted(_known(streams).items())]
    data = {
        "cluster_id": streams.member.cluster_id,
        "node": streams.member.name,
        "totals": {
            "live": sum(one["state"] not in ("down", "silent") for one in nodes),
            "streams": len(rows),
            "troubled": sum(row["state"] != IN_SYNC for row in rows),
        },
        "nodes": nodes,
        "streams": shown,
        "matching": len(matching),
        "shape": [
            [list(one.values()) for one in nodes],
            [
                [value for key, value in row.items() if key not in ("lag", "copies")]
                for row in shown
            ],
        ],
    }
    return Shown("Cluster", data, {"q": wanted})


def _lags(led: ServedStream | None, own: dict[str, int]) -> dict[str, int]:
    """Return the lag by node, in records. If this node leads the stream, these are the lags of all
    followers. Otherwise only the lag of this node's copy is known."""
    return own if led is None else led.leader.lags()


def standing(
    streams: ReplicatedStreams, record: StreamMetadata, lags: Mapping[str, int]
) -> dict[str, Any]:
    """Return the state of a stream. `lag` is the largest lag that this node knows."""
    leader = streams.view.leader_of(record) or ""
    silent = {node for node in record.isr if streams.view.silent_seconds(node)}
    return {
        "name": record.name,
        "state": _state(record, silent) if leader else NO_LEADER,
        "leader": leader,
        "leader_page": page_of(streams, leader, record.name),
        "leader_epoch": record.leader_epoch,
        "replicas": list(record.replicas),
        "in_sync": list(record.isr),
        "min_isr": record.min_isr,
        "is_moving": bool(record.adding or record.removing),
        "lag": max(lags.values(), default=0),
        "copies": [
            {"node": node, "in_sync": node in record.isr, "lag": lags.get(node)}
            for node in record.replicas
        ],
    }


def without_lags(row: dict[str, Any]) -> list[Any]:
    """Return some values of a row. If one of them changes, the page must be loaded again."""
    return [value for key, value in row.items() if key not in ("lag", "copies")]


def _state(record: StreamMetadata, silent: Set[str]) -> str:
    """Return the state of a stream that has a leader. `silent` contains the nodes of the ISR that
    do not respond."""
    if not record.can_commit:
        return TOO_FEW
    return IN_SYNC if {*record.target} <= {*record.isr} - silent else MISSING


def _known(streams: ReplicatedStreams) -> dict[str, NodeInfo]:
    return streams.mirror.directory.nodes


def _node(
    streams: ReplicatedStreams, node: NodeInfo, records: list[StreamMetadata]
) -> dict[str, Any]:
    state = "stopping" if node.stopping else "draining" if node.draining else "live"
    if streams.view.silent_seconds(node.name):
        state = "silent"
    return {
        "node": node.name,
        "state": state if node.name in streams.mirror.directory.live else "down",
        "address": node.address,
        "page": node.web if _is_url(node.web) else "",
        "zone": node.zone,
        "version": node.version,
        "leads": sum(record.leader == node.name for record in records),
        "replicas": sum(node.name in record.replicas for record in records),
    }


def page_of(streams: ReplicatedStreams, node: str, stream: str) -> str:
    """Return the address of the stream's page on the node; empty for this node, or if the node's
    address is unknown."""
    info = _known(streams).get(node)
    if info is None or node == streams.member.name or not _is_url(info.web):
        return ""
    return f"{info.web.rstrip('/')}/ui/streams/{quote(stream)}"


def _is_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))


# --- for the pages of streams ---


def replication_of(asked: Asked, name: str) -> dict[str, Any] | None:
    """Return the state of the stream in the cluster; None if the cluster's metadata does not
    contain the stream."""

    def lags(streams: ReplicatedStreams) -> dict[str, int]:
        followed = streams.followed.get(name)
        own = {} if followed is None else {streams.member.name: followed.lag}
        return _lags(streams.led.get(name), own)

    return _standing_of(asked, name, lags)


def leader_of(asked: Asked, name: str) -> dict[str, Any] | None:
    """Return only the leader and the state of the stream, for a row of a list. Return None as
    `replication_of` does."""
    found = _standing_of(asked, name, lambda streams: {})
    return found and {key: found[key] for key in ("state", "leader", "leader_page")}


def _standing_of(
    asked: Asked, name: str, lags: Callable[[ReplicatedStreams], Mapping[str, int]]
) -> dict[str, Any] | None:
    streams = node_of(asked.parts.broker)
    record = streams and streams.view.known(name)
    return standing(streams, record, lags(streams)) if streams and record else None
