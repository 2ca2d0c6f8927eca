"""Reads streams from a liftlog daemon, with asyncio (`connect`) or blocking (`connect_sync`).

    async with connect("tcp://127.0.0.1:9292") as client:
        async for record in client.read("orders", start="earliest", until="end"):
            print(record.offset, record.value)

Importing this package loads no server dependency. Each name loads its module when it is first
used: `connect_sync` loads neither asyncio nor the client for it.

    opening             `connect` and `connect_sync`
    aio, blocking       the two clients: thin shells over the modules below
    connecting/         addresses, sockets, the node for each request, reconnecting
    requests            converts arguments to requests, and answers to results
    reading/            chooses the next fetch, checks batches, decides which offsets to store
    working/            workers: batches of a consumer with acks, and the unacked messages
    groups/             a member of a group: its slots, its records, its heartbeats
    publisher, sync_publisher, publishing/    publishing over NATS with acks
    dead_letters, dead_lettering    publish records whose processing fails
    companions          `envelope` and nkeys, imported from where they are installed
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from liftlog.client.aio.batch_reader import BatchReader
    from liftlog.client.aio.client import Client, RecordReader
    from liftlog.client.aio.consumer import Consumer
    from liftlog.client.aio.group import GroupConsumer
    from liftlog.client.aio.worker import Worker
    from liftlog.client.blocking.batch_reader import SyncBatchReader
    from liftlog.client.blocking.client import SyncClient, SyncRecordReader
    from liftlog.client.blocking.consumer import SyncConsumer
    from liftlog.client.blocking.group import SyncGroupConsumer
    from liftlog.client.blocking.worker import SyncWorker
    from liftlog.client.opening import connect, connect_sync
    from liftlog.client.reading.batches import FetchAnswer
    from liftlog.client.reading.read_options import (
        Column,
        Filter,
        OnCorrupt,
        OnReset,
        Prefer,
        ReadOptions,
        Reset,
        Start,
        Until,
    )
    from liftlog.client.working.deliveries import WorkBatch, WorkMessage
    from liftlog.client.working.settings import ConsumerOptions
    from liftlog.protocol.administration import (
        ErasedOffsets,
        ErasureProof,
        StreamExtent,
        StreamUpdate,
    )
    from liftlog.protocol.checkpoints import Checkpoint
    from liftlog.protocol.described import DaemonInfo, ErasureInfo, LeaseInfo, ProvenFile, Removal
    from liftlog.protocol.groups import GroupInfo
    from liftlog.protocol.messages import StreamInfo
    from liftlog.protocol.replication import ClusterInfo, ClusterNode, ClusterStream
    from liftlog.protocol.workers import ConsumerInfo
    from liftlog.records.decode import Record, RecordBatch

__all__ = [
    "BatchReader",
    "Checkpoint",
    "Client",
    "ClusterInfo",
    "ClusterNode",
    "ClusterStream",
    "Column",
    "Consumer",
    "ConsumerInfo",
    "ConsumerOptions",
    "DaemonInfo",
    "ErasedOffsets",
    "ErasureInfo",
    "ErasureProof",
    "FetchAnswer",
    "Filter",
    "GroupConsumer",
    "GroupInfo",
    "LeaseInfo",
    "OnCorrupt",
    "OnReset",
    "Prefer",
    "ProvenFile",
    "ReadOptions",
    "Record",
    "RecordBatch",
    "RecordReader",
    "Removal",
    "Reset",
    "Start",
    "StreamExtent",
    "StreamInfo",
    "StreamUpdate",
    "SyncBatchReader",
    "SyncClient",
    "SyncConsumer",
    "SyncGroupConsumer",
    "SyncRecordReader",
    "SyncWorker",
    "Until",
    "WorkBatch",
    "WorkMessage",
    "Worker",
    "connect",
    "connect_sync",
]

_HOMES = {
    "client.aio.batch_reader": ("BatchReader",),
    "client.aio.client": (
        "Client",
        "RecordReader",
    ),
    "client.aio.consumer": ("Consumer",),
    "client.aio.group": ("GroupConsumer",),
    "client.aio.worker": ("Worker",),
    "client.blocking.batch_reader": ("SyncBatchReader",),
    "client.blocking.client": (
        "SyncClient",
        "SyncRecordReader",
    ),
    "client.blocking.consumer": ("SyncConsumer",),
    "client.blocking.group": ("SyncGroupConsumer",),
    "client.blocking.worker": ("SyncWorker",),
    "client.opening": (
        "connect",
        "connect_sync",
    ),
    "client.reading.batches": ("FetchAnswer",),
    "client.reading.read_options": (
        "Column",
        "Filter",
        "OnCorrupt",
        "OnReset",
        "Prefer",
        "ReadOptions",
        "Reset",
        "Start",
        "Until",
    ),
    "client.working.deliveries": (
        "WorkBatch",
        "WorkMessage",
    ),
    "client.working.settings": ("ConsumerOptions",),
    "protocol.administration": (
        "ErasedOffsets",
        "ErasureProof",
        "StreamExtent",
        "StreamUpdate",
    ),
    "protocol.checkpoints": ("Checkpoint",),
    "protocol.described": (
        "DaemonInfo",
        "ErasureInfo",
        "LeaseInfo",
        "ProvenFile",
        "Removal",
    ),
    "protocol.groups": ("GroupInfo",),
    "protocol.messages": ("StreamInfo",),
    "protocol.replication": (
        "ClusterInfo",
        "ClusterNode",
        "ClusterStream",
    ),
    "protocol.workers": ("ConsumerInfo",),
    "records.decode": (
        "Record",
        "RecordBatch",
    ),
}
"""The module of each public name, below `liftlog`."""
_MODULES = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"liftlog.{module}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
