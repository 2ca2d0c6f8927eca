"""Reads streams from a liftlog daemon, with asyncio (`connect`) or blocking (`connect_sync`).

    async with connect("tcp://127.0.0.1:9292") as client:
        async for record in client.read("orders", start="earliest", until="end"):
            print(record.offset, record.value)

Importing this package loads no server dependency.

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
from liftlog.protocol.administration import StreamExtent, StreamUpdate
from liftlog.protocol.checkpoints import Checkpoint
from liftlog.protocol.described import DaemonInfo, LeaseInfo, Removal
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
    "SyncWorker",
    "Until",
    "WorkBatch",
    "WorkMessage",
    "Worker",
    "connect",
    "connect_sync",
]
