"""Reads streams from a liftlog daemon, with asyncio (`connect`) or blocking (`connect_sync`).

    async with connect("tcp://127.0.0.1:9292") as client:
        async for record in client.read("orders", start="earliest", until="end"):
            print(record.offset, record.value)

Importing this package loads no server dependency.

    opening             `connect` and `connect_sync`
    aio, blocking       the two clients: thin shells over the modules below
    connecting/         addresses, sockets, the node for each request, reconnecting
    requests            arguments -> requests, answers -> results
    reading/            the next fetch, checked batches, offsets to store
    groups/             a member of a group: its slots, its records, its heartbeats
    publisher, sync_publisher, publishing/    publishing over NATS with acks
    dead_letters, dead_lettering    publish records whose processing fails
    companions          `envelope` and nkeys, imported from where they are installed
"""

from __future__ import annotations

from liftlog.client.aio.batch_reader import BatchReader
from liftlog.client.aio.client import Client, RecordReader
from liftlog.client.aio.consumer import Consumer
from liftlog.client.aio.group import GroupConsumer
from liftlog.client.blocking.batch_reader import SyncBatchReader
from liftlog.client.blocking.client import SyncClient, SyncRecordReader
from liftlog.client.blocking.consumer import SyncConsumer
from liftlog.client.blocking.group import SyncGroupConsumer
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
from liftlog.protocol.administration import StreamExtent, StreamUpdate
from liftlog.protocol.checkpoints import Checkpoint
from liftlog.protocol.described import DaemonInfo, LeaseInfo, Removal
from liftlog.protocol.groups import GroupInfo
from liftlog.protocol.messages import StreamInfo
from liftlog.protocol.replication import ClusterInfo, ClusterNode, ClusterStream
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
    "DaemonInfo",
    "FetchAnswer",
    "Filter",
    "GroupConsumer",
    "GroupInfo",
    "LeaseInfo",
    "OnCorrupt",
    "OnReset",
    "Prefer",
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
    "Until",
    "connect",
    "connect_sync",
]
