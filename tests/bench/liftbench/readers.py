"""Runs the readers, each in its own process, over TCP on loopback.

    python -m bench.liftbench.readers '{"mode": "liftlog", "address": ..., "stream": ...}'

All print one JSON line: records, value bytes and seconds of each pass.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

Pass = tuple[int, int, float]
"""Records, bytes, seconds."""
_LARGE_VALUE_BYTES = 512


def read_liftlog(spec: dict[str, Any]) -> Iterator[Pass]:
    """Read whole batches. The client verifies each checksum, and each value is read.

    Small values are copied as `bytes`. Large values are read in the column, as the client's
    documentation recommends, because a copy of this size takes longer than all other steps.
    """
    from liftlog.client import connect_sync

    in_place = spec["value_bytes"] > _LARGE_VALUE_BYTES

    with closing(connect_sync(spec["address"])) as client:
        for _ in range(spec["passes"]):
            records = value_bytes = touched = 0
            started = time.perf_counter()
            options = spec.get("options", {})
            for batch in client.read_batches(spec["stream"], "earliest", "end", **options):
                records += len(batch)
                if in_place:
                    data, ends = batch.value_column()
                    value_bytes += ends[-1] - ends[0]
                    touched += sum([data[start] for start in ends[:-1]])
                else:
                    values: list[Any] = batch.values()
                    value_bytes += sum(map(len, values))
            yield records, value_bytes, time.perf_counter() - started


def read_ways(spec: dict[str, Any]) -> Iterator[Pass]:
    """Read a stream whose records may have keys and headers, in the way that `way` names."""
    from liftlog.client import connect_sync

    with closing(connect_sync(spec["address"])) as client:
        for _ in range(spec["passes"]):
            started = time.perf_counter()
            records, value_bytes = _WAYS[spec["way"]](client, spec["stream"])
            yield records, value_bytes, time.perf_counter() - started


def _values(client: Any, stream: str) -> tuple[int, int]:
    records = value_bytes = 0
    for batch in client.read_batches(stream, start="earliest", until="end"):
        records += len(batch)
        value_bytes += sum(map(len, batch.values()))
    return records, value_bytes


def _columns(client: Any, stream: str) -> tuple[int, int]:
    """Read values, keys and header blocks as columns."""
    records = value_bytes = 0
    for batch in client.read_batches(stream, start="earliest", until="end"):
        keys, blocks, values = batch.keys(), batch.headers(), batch.values()
        assert len(keys) == len(blocks) == len(values)
        records += len(values)
        value_bytes += sum(map(len, values))
    return records, value_bytes


def _one_by_one(client: Any, stream: str) -> tuple[int, int]:
    """Read like most programs: one record at a time, with the key, without the headers."""
    records = value_bytes = 0
    for record in client.read(stream, start="earliest", until="end"):
        records += 1
        value_bytes += len(record.value)
        assert record.key != b""
    return records, value_bytes


def _all_fields(client: Any, stream: str) -> tuple[int, int]:
    """Read one record at a time. Each field is read, and one header is looked up by its name."""
    records = value_bytes = ids = 0
    for record in client.read(stream, start="earliest", until="end"):
        records += 1
        value_bytes += len(record.value)
        ids += record.headers.get("Nats-Msg-Id") is not None
        assert record.offset > 0 < record.timestamp_ns
        assert record.subject
        assert record.key != b""
    assert ids in (0, records)
    return records, value_bytes


def _arrow(client: Any, stream: str) -> tuple[int, int]:
    import pyarrow.compute as pc

    records = value_bytes = 0
    for batch in client.read_batches(stream, start="earliest", until="end"):
        table = batch.to_arrow()
        records += table.num_rows
        value_bytes += pc.sum(pc.binary_length(table.column("value"))).as_py()
    return records, value_bytes


_WAYS = {
    "values": _values,
    "columns": _columns,
    "records": _one_by_one,
    "fields": _all_fields,
    "arrow": _arrow,
}


def read_jetstream(spec: dict[str, Any]) -> Iterator[Pass]:
    """Read with the ordered consumer of nats-py and a callback, its fastest way to receive."""
    for _ in range(spec["passes"]):
        yield asyncio.run(_ordered_consumer(spec))


async def _ordered_consumer(spec: dict[str, Any]) -> Pass:
    import nats

    connection = await nats.connect(spec["address"])
    done = asyncio.Event()
    records = value_bytes = 0
    wanted = spec["records"]

    async def receive(message: Any) -> None:
        nonlocal records, value_bytes
        records += 1
        value_bytes += len(message.data)
        if records == wanted:
            done.set()

    try:
        started = time.perf_counter()
        await connection.jetstream().subscribe(
            spec["subject"], stream=spec["stream"], ordered_consumer=True, cb=receive
        )
        await asyncio.wait_for(done.wait(), timeout=spec.get("timeout_seconds", 300))
        return records, value_bytes, time.perf_counter() - started
    finally:
        await connection.close()


def drain(spec: dict[str, Any]) -> Iterator[Pass]:
    """Receive and drop the data of `serve_files`: the maximum speed of a socket."""
    buffer = bytearray(1 << 20)
    for _ in range(spec["passes"]):
        with socket.create_connection(("127.0.0.1", spec["port"])) as connection:
            received = 0
            started = time.perf_counter()
            while count := connection.recv_into(buffer):
                received += count
            yield 0, received, time.perf_counter() - started


def serve_files(spec: dict[str, Any]) -> None:
    """Send the data of all files to each client with plain sendfile, one connection at a time."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            connection, _ = listener.accept()
            with connection:
                for path, size in spec["files"]:
                    _send_file(connection, path, size)


def _send_file(connection: socket.socket, path: str, size: int) -> None:
    with open(path, "rb") as file:
        left, position = size, 0
        while left:
            sent = os.sendfile(connection.fileno(), file.fileno(), position, left)
            position += sent
            left -= sent


MODES = {"liftlog": read_liftlog, "ways": read_ways, "jetstream": read_jetstream, "drain": drain}


def main(argument: str) -> None:
    spec: dict[str, Any] = json.loads(argument)
    if spec["mode"] == "serve-files":
        serve_files(spec)
    else:
        print(json.dumps({"passes": list(MODES[spec["mode"]](spec))}))


if __name__ == "__main__":
    main(sys.argv[1])
