"""Reading streams from a liftlog daemon, from asyncio (`connect`) or blocking (`connect_sync`).

    async with connect("tcp://127.0.0.1:9292") as client:
        async for record in client.read("orders", start="earliest", until="end"):
            print(record.offset, record.value)

Importing this package loads no server dependency. Both clients are thin shells over
`liftlog.protocol` and `read_ahead`, which hold all the logic.
"""

from __future__ import annotations

from liftlog.client.aio.client import Client, connect
from liftlog.client.aio.consumer import Consumer
from liftlog.client.batch_reader import BatchReader, SyncBatchReader
from liftlog.client.batches import FetchAnswer
from liftlog.client.blocking.client import SyncClient, connect_sync
from liftlog.client.blocking.consumer import SyncConsumer
from liftlog.client.positions import Start, Until
from liftlog.client.read_ahead import OnCorrupt
from liftlog.client.read_options import ReadOptions
from liftlog.client.record_reader import RecordReader, SyncRecordReader
from liftlog.client.resets import OnReset, Reset
from liftlog.client.selecting import Column, Filter
from liftlog.protocol.administration import StreamExtent, StreamUpdate
from liftlog.protocol.checkpoints import Checkpoint
from liftlog.protocol.described import DaemonInfo, LeaseInfo, Removal
from liftlog.protocol.messages import StreamInfo
from liftlog.records.decode import Record, RecordBatch

__all__ = [
    "BatchReader",
    "Checkpoint",
    "Client",
    "Column",
    "Consumer",
    "DaemonInfo",
    "FetchAnswer",
    "Filter",
    "LeaseInfo",
    "OnCorrupt",
    "OnReset",
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
    "SyncRecordReader",
    "Until",
    "connect",
    "connect_sync",
]
