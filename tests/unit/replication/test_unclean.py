"""A node has the best copy of a stream that no node can lead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.disks.simfs import SimFileSystem

from liftlog.cluster import transitions
from liftlog.cluster.election import LogEnd
from liftlog.cluster.record import StreamMetadata
from liftlog.log.data_dir import make_durable_directory
from liftlog.protocol.replication import CopiesAnswer
from liftlog.server.metadata.file_store import FileMetaStore
from liftlog.server.metadata.mirror import Mirror
from liftlog.server.replication import unclean
from liftlog.server.replication.guarding import Guard
from liftlog.server.replication.unclean import UncleanRecovery

STORE = Path("/meta")


class Node:
    """Node a, in its start 2; b is asked by a function call."""

    def __init__(self, store: FileMetaStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ends = {"a": LogEnd(1, 9), "b": LogEnd(1, 5)}
        self.may_lead = True
        self.is_b_silent = False
        self.told: list[StreamMetadata] = []
        self.mirror = Mirror(store, on_record=lambda record: None, on_nodes=lambda: None)
        self.mirror.directory.live |= {"a", "b"}
        no_link: Any = None

        def guard(node: str) -> Guard:
            return Guard(
                self.mirror,
                node,
                link_to=no_link,
                log_end=lambda name: self.ends.get(node),
                stand_aside=lambda name: None,
                give_up=lambda name, stored: None,
            )

        other = guard("b")

        async def ask(nodes: set[str], message: Any, link_to: Any) -> dict[str, CopiesAnswer]:
            assert nodes == {"b"}
            return {} if self.is_b_silent else {"b": other.answer(message.streams)}

        monkeypatch.setattr(unclean, "ask_nodes", ask)
        self.recovery = UncleanRecovery(
            self.mirror,
            "a",
            2,
            link_to=no_link,
            answer=guard("a").answer,
            may_lead=lambda name: self.may_lead,
            on_recovered=self.told.append,
        )

    async def lose_all(self, starts: dict[str, int]) -> None:
        """All nodes start again with damaged disks."""
        made = transitions.create("s", "one", {"min_isr": 1}, "ab", starts={"a": 1, "b": 1})
        await self.mirror.create(made)
        for node, start in starts.items():
            await self.mirror.change(
                "s",
                lambda one, node=node, start=start: transitions.register(
                    one, node, start, clean=False
                ),
            )

    @property
    def leader(self) -> str | None:
        return self.mirror.records["s"].leader


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    fs = SimFileSystem()
    make_durable_directory(fs, STORE)
    store = FileMetaStore(STORE / "records", shared=False, fs=fs)
    yield Node(store, monkeypatch)
    store.close()


async def test_it_leads_when_nothing_has_changed_for_a_look(node: Node) -> None:
    await node.lose_all({"a": 2, "b": 2})
    await node.recovery.look()
    assert node.leader is None
    node.ends["b"] = LogEnd(1, 6)  # what was under way has come to an end
    await node.recovery.look()
    assert node.leader is None
    await node.recovery.look()
    assert node.leader == "a"
    assert node.recovery.recovered == 1
    assert [one.leader for one in node.told] == ["a"]
    for _ in range(2):
        await node.recovery.look()
    assert node.recovery.recovered == 1


@pytest.mark.parametrize("why", ["another is longer", "b is silent", "a cannot", "b cannot tell"])
async def test_it_does_not_lead(node: Node, why: str) -> None:
    await node.lose_all({"a": 2, "b": 2})
    if why == "another is longer":
        node.ends["b"] = LogEnd(2, 1)
    elif why == "b cannot tell":
        del node.ends["b"]
    node.is_b_silent = why == "b is silent"
    node.may_lead = why != "a cannot"
    for _ in range(3):
        await node.recovery.look()
    assert node.leader is None


async def test_it_leads_nothing_before_its_start_is_registered(node: Node) -> None:
    """The record would tell that it leads, in its former life."""
    await node.lose_all({"b": 2})
    await node.mirror.change("s", lambda one: transitions.register(one, "a", 3, clean=False))
    for _ in range(3):
        await node.recovery.look()
    assert node.leader is None


async def test_it_leads_nothing_that_another_one_has_taken_since(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the copies and the change: an operator has chosen."""
    await node.lose_all({"a": 2, "b": 2})
    await node.recovery.look()
    real = node.mirror.change

    async def late(name: str, step: Any) -> StreamMetadata | None:
        await real(name, lambda one: transitions.recover(one, "b"))
        return await real(name, step)

    monkeypatch.setattr(node.mirror, "change", late)
    await node.recovery.look()
    assert node.leader == "b"
    assert node.recovery.recovered == 0
    assert not node.told
