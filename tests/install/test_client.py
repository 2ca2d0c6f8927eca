"""The distribution `liftlog-client`: in an application's environment, without the daemon."""

from __future__ import annotations

import json
from pathlib import Path

from support.clients.ingesting import publish
from support.clients.raw_nats import RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.installed import Environment

from liftlog import __version__

READ = """
import asyncio, json, sys
from liftlog.client import Filter, connect, connect_sync

address = sys.argv[1]
found = {}
with connect_sync(address) as client:
    found["records"] = [
        [r.offset, r.subject, r.key and r.key.decode(), r.value.decode()]
        for r in client.read("orders", start="earliest", until="end")
    ]
    batches = list(client.read_batches("orders", start="earliest", until="end"))
    found["batches"] = sum(len(list(batch)) for batch in batches)
    found["filtered"] = [
        r.offset
        for r in client.read("orders", start="earliest", until="end", filter=Filter(key=b"k1"))
    ]
    with client.consumer("billing", "orders") as consumer:
        for record in consumer:
            found["consumed"] = record.offset
            if record.offset == 3:
                break
        consumer.checkpoint()

async def main():
    async with connect(address) as client:
        return [r.offset async for r in client.read("orders", start="earliest", until="end")]

found["again"] = asyncio.run(main())
loaded = {name.split(".")[0] for name in sys.modules}
found["unwanted"] = sorted(loaded & set(sys.argv[2].split(",")))
print(json.dumps(found))
"""

UNWANTED = "acl,envelope,compaction,numpy,nats,nacl,pydantic,click,aiohttp,uvloop,yaml,rich,jinja2"

FOREIGN = "raise RuntimeError('a module of the application, which liftlog has no business with')\n"


def test_reading(reader: Environment, server: NatsServer, tmp_path: Path) -> None:
    # The application's own modules bear the names of our packages.
    for name in ("acl", "envelope", "compaction"):
        (tmp_path / f"{name}.py").write_text(FOREIGN)
    (tmp_path / "app.py").write_text(READ)
    with (
        Daemon(server.url, {"streams": {"orders": {"subject": "orders.>"}}}) as daemon,
        RawNats(server.port) as raw,
    ):
        for number in range(1, 6):
            publish(raw, "orders.a", b"%d" % number, Liftlog_Key=f"k{number % 2}")
        done = reader.run("python", "app.py", daemon.pull_address, UNWANTED, cwd=tmp_path)
    found = json.loads(done.stdout)
    assert found["records"] == [
        [number, "orders.a", f"k{number % 2}", str(number)] for number in range(1, 6)
    ]
    assert found["batches"] == 5
    assert found["filtered"] == [1, 3, 5]
    assert found["consumed"] == 3
    assert found["again"] == [1, 2, 3, 4, 5]
    assert found["unwanted"] == []


MISSING = """
import asyncio
from liftlog.client import connect_sync
from liftlog.client.publisher import Publisher
from liftlog.client.companions import nkeys
from liftlog.errors import MissingDependency
from liftlog.records import iter_batches

async def publish():
    async with Publisher("nats://127.0.0.1:1"):
        raise AssertionError

def login():
    open("seed", "w").write(nkeys.new_seed())
    connect_sync("tcp://127.0.0.1:1", nkey="seed").__enter__()

def arrow():
    import liftlog.records.columns.arrow

for attempt in (lambda: asyncio.run(publish()), login, arrow):
    try:
        attempt()
    except MissingDependency as error:
        print(error.hint)
"""


def test_what_an_extra_brings_is_named(reader: Environment, tmp_path: Path) -> None:
    printed = reader.run("python", "-c", MISSING, cwd=tmp_path).stdout.splitlines()
    assert ["nats-py" in printed[0], "pynacl" in printed[1]] == [True, True]
    assert "pip install" in printed[2]


def test_it_is_small_and_of_the_same_version(reader: Environment) -> None:
    listed = json.loads(reader.run("python", "-m", "pip", "list", "--format=json").stdout)
    versions = {found["name"]: found["version"] for found in listed}
    assert versions.keys() - {"pip", "setuptools"} == {"liftlog-client", "msgpack", "crc32c"}
    assert versions["liftlog-client"] == __version__


def test_with_everything(client_wheel: Path, server: NatsServer, tmp_path: Path) -> None:
    """Envelopes, Arrow and publishing need what the extras bring, and no more."""
    environment = Environment(tmp_path / "env")
    environment.install(f"{client_wheel}[publish,nkey,arrow,compression]")
    (tmp_path / "app.py").write_text(
        """
import asyncio, sys
from liftlog.client import connect_sync
from liftlog.client.publisher import Publisher

async def main():
    async with Publisher(sys.argv[2], use_envelope=True) as publisher:
        await publisher.publish("orders.a", b"value", key=b"\\x00\\xff")

asyncio.run(main())
with connect_sync(sys.argv[1]) as client:
    for batch in client.read_batches("orders", start="earliest", until="end"):
        print(batch.to_arrow().to_pylist()[0]["key"])
"""
    )
    stream = {"subject": "orders.>", "compression": "zstd"}
    with Daemon(server.url, {"streams": {"orders": stream}}) as daemon:
        done = environment.run("python", "app.py", daemon.pull_address, server.url, cwd=tmp_path)
    assert done.stdout.strip() == repr(b"\x00\xff")
