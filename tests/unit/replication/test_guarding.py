"""Doubts about records in the metadata store, each looked into by itself."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.disks.simfs import Fault, SimFileSystem

from liftlog.cluster import transitions
from liftlog.cluster.election import LogEnd
from liftlog.cluster.record import StreamMetadata
from liftlog.errors import MetadataUnavailable
from liftlog.log.data_dir import make_durable_directory
from liftlog.server.metadata.file_store import FileMetaStore
from liftlog.server.metadata.known_records import KNOWN_RECORDS_NAME, KnownRecords
from liftlog.server.metadata.mirror import Mirror
from liftlog.server.replication.guarding import Guard

STORE = Path("/meta")
NAMES = ("a-damaged", "b-newer", "c", "d")
UNREADABLE = {"a-damaged": b"#", "b-newer": b'{"v":2}'}


class Node:
    """The only node, with a copy of each stream."""

    def __init__(self, store: FileMetaStore, kept: KnownRecords | None = None) -> None:
        self.store = store
        self.aside: list[str] = []
        self.mirror = Mirror(store, on_record=lambda one: None, on_nodes=lambda: None, kept=kept)
        no_link: Any = None
        self.guard = Guard(
            self.mirror,
            "n",
            link_to=no_link,
            log_end=lambda name: LogEnd(1, 5),
            stand_aside=self.aside.append,
            give_up=lambda name, stored: pytest.fail(f"{name} is given up"),
        )

    async def set_back(self) -> dict[str, StreamMetadata]:
        """The store forgets the newest change of each record, and two of them cannot be read.
        Returns what this node has seen."""
        for name in NAMES:
            await self.mirror.create(
                transitions.create(name, "one", {"min_isr": 1}, "n", starts={"n": 1})
            )
            before = await self.store.get(f"stream.{name}")
            await self.mirror.change(name, lambda one: transitions.truncate(one, 3))
            entry = await self.store.get(f"stream.{name}")
            assert before is not None
            assert entry is not None
            value = UNREADABLE.get(name, before.value)
            await self.store.cas(f"stream.{name}", value, entry.revision)
            self.mirror.doubtful.add(name)
        return dict(self.mirror.known)


@pytest.fixture
def node() -> Iterator[Node]:
    fs = SimFileSystem()
    make_durable_directory(fs, STORE)
    store = FileMetaStore(STORE / "records", shared=False, fs=fs)
    yield Node(store)
    store.close()


async def test_a_record_that_cannot_be_read_keeps_no_other_from_being_restored(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    known = await node.set_back()
    node.mirror.regressed.add("a-damaged")  # found out before it was damaged
    for _ in range(3):
        await node.guard.look()
    assert node.aside == ["c", "d"]
    for name in node.aside:
        stored = await node.mirror.read(name)
        assert stored is not None
        assert stored.log_start == 3
        assert stored.version > known[name].version
    assert node.mirror.doubtful == {"a-damaged", "b-newer"}
    assert node.mirror.regressed == {"a-damaged"}, "no one leads by what is in doubt"
    told = [line for line in caplog.messages if line.startswith("record-not-read")]
    assert len(told) == 2, "each once"


async def test_an_operator_has_a_damaged_record_replaced_and_a_newer_one_left(node: Node) -> None:
    await node.set_back()
    answer = await node.guard.restore(dry_run=False)
    assert [one["stream"] for one in answer.streams] == ["a-damaged", "c", "d"]
    assert all(one["restored"] for one in answer.streams)
    stored = await node.mirror.read("a-damaged")
    assert stored is not None
    assert stored.log_start == 3
    newer = await node.store.get("stream.b-newer")
    assert newer is not None
    assert newer.value == UNREADABLE["b-newer"]


async def test_a_stream_is_restored_in_the_place_of_the_one_that_it_followed(node: Node) -> None:
    """All copies of the deleted one were removed before; so the store is set back to a stream that
    no node has anything of."""
    first = transitions.create("s", "one", {"min_isr": 1}, "n", starts={"n": 1})
    await node.mirror.create(first)
    await node.mirror.change("s", transitions.delete)
    await node.mirror.change("s", lambda one: transitions.removed(one, "n"))
    known = await node.mirror.create(replace(first, incarnation="two"))
    entry = await node.store.get("stream.s")
    assert entry is not None
    await node.store.cas("stream.s", first.to_json(), entry.revision)
    again = Node(node.store)  # it has started again, and remembers what it has seen
    again.mirror.remember(node.mirror.known)
    await again.mirror.load()
    assert again.mirror.known == {"s": known}
    await again.guard.look()
    stored = await again.mirror.read("s")
    assert stored is not None
    assert (stored.incarnation, stored.isr) == ("two", ("n",))


async def test_a_node_that_cannot_read_what_it_has_seen_neither_acts_nor_answers() -> None:
    """Beside a store that was set back meanwhile. It stands aside as soon as it can read that."""
    fs = SimFileSystem()
    make_durable_directory(fs, STORE)
    store = FileMetaStore(STORE / "records", shared=False, fs=fs)
    before = KnownRecords(fs, STORE)
    known = await Node(store, before).set_back()
    await before.written()
    fs.faults = [Fault("open", errno.EMFILE, KNOWN_RECORDS_NAME, times=-1)]

    again: Node
    kept = KnownRecords(fs, STORE, on_late=lambda records: again.mirror.remember(records))
    again = Node(store, kept)
    again.mirror.remember(kept.read())
    await again.mirror.load()
    assert again.mirror.records["c"].log_start == 0, "the store was set back"
    for act in (
        again.mirror.change("c", lambda one: transitions.truncate(one, 1)),
        again.mirror.create(known["c"]),
        again.mirror.put(known["c"], 0),
        again.mirror.confirmed("c"),
    ):
        with pytest.raises(MetadataUnavailable, match="cannot be read"):
            await act
    for names in ([], ["c"]):
        with pytest.raises(MetadataUnavailable):
            again.guard.answer(names)
    fs.faults = []
    await kept.written()
    assert again.mirror.known == known
    assert again.mirror.doubtful == set(NAMES)
    assert not again.mirror.records.keys() & {"c", "d"}, "what is stored is not believed"
    await again.guard.look()
    for name in ("c", "d"):
        stored = await again.mirror.read(name)
        assert stored is not None
        assert stored.log_start == 3
    store.close()
