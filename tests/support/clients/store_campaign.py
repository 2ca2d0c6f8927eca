"""Runs many clients of the metadata store in JetStream while its three servers are killed, stopped
and disconnected.

Clients make compare-and-set changes to a few keys, read behind barriers, watch all keys, hold a
session like a node, and compete for keys that expire.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

from support.daemons.nats_cluster import NatsCluster
from support.daemons.nats_links import NatsLinks
from support.daemons.nats_server import NatsServer
from support.worlds.store_history import (
    Held,
    KeyHistory,
    Seen,
    Written,
    label_of,
    overlaps,
    value_of,
)

from liftlog.cluster.store import CasLost, CasUnknown, Entry, NodeSession, StoreUnavailable
from liftlog.server.metadata.kv_bucket import Refused
from liftlog.server.metadata.kv_link import Unanswered
from liftlog.server.metadata.kv_store import NatsKvMetaStore, make_store
from liftlog.server.metadata.sessions import RenewedKey
from liftlog.settings import NatsSettings

KEYS = ("stream.a", "stream.b", "stream.c")
PRIZES = {"live.p3": 3, "live.p6": 6}
"""Keys for which clients compete, and their times to live."""
NODE_TTL = 15
_TRANSIENT = (CasLost, CasUnknown, StoreUnavailable, Unanswered, Refused, KeyError)
PATIENCE = 60.0


class Campaign:
    def __init__(self, cluster: NatsCluster, links: NatsLinks, seed: int, clients: int = 4) -> None:
        self.rng = random.Random(seed)
        self.cluster = cluster
        self.links = links
        self.settings = NatsSettings(servers=[server.url for server in cluster.servers])
        self.histories = {key: KeyHistory() for key in KEYS}
        self.held: dict[str, list[Held]] = defaultdict(list)
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.stores: list[NatsKvMetaStore] = []
        self.views: list[dict[str, Entry]] = []
        self.outages: list[float] = []
        self.last_made = 0.0
        self._clients = clients
        self._numbers = 0
        self._is_ending = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._watches: list[asyncio.Task[None]] = []

    # --- life ---

    async def start(self) -> None:
        assert await make_store(self.settings, "campaign", 3)
        for number in range(self._clients):
            store = NatsKvMetaStore(self.settings, self.settings.servers, "campaign", f"n{number}")
            await store.open()
            self.stores.append(store)
            self.views.append({})
        self.last_made = time.monotonic()
        for number, store in enumerate(self.stores):
            works: list[Awaitable[None]] = [
                self._write(store),
                self._write(store),
                self._read(store),
                self._be_node(store, number),
                *(self._compete(store, number, key, ttl) for key, ttl in PRIZES.items()),
            ]
            self._tasks += [asyncio.ensure_future(self._supervised(work)) for work in works]
            watch = self._supervised(self._watch(store, number))
            self._watches.append(asyncio.ensure_future(watch))

    async def _supervised(self, work: Awaitable[None]) -> None:
        try:
            await work
        except Exception as error:  # a defect of the store, or of the campaign
            self.problems.append(f"{type(error).__name__}: {error}")
            raise

    async def end(self) -> list[str]:
        """Start all servers, and return the problems."""
        self._is_ending.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        store = self.stores[0]
        for key, history in self.histories.items():
            entry = await eventually(lambda key=key: store.get_newest(key))  # type: ignore[misc]
            self.problems += history.problems(label_of(entry and entry.value))
        for key, held in self.held.items():
            self.problems += [f"{key}: {one}" for one in overlaps(held)]
        await self._compare_views()
        for task in self._watches:
            task.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        for store in self.stores:
            self.counts["set back"] += store.times_set_back
            await store.close()
        if self.counts["set back"]:
            self.problems.append("a store took the bucket for one that was set back")
        return self.problems

    async def _compare_views(self) -> None:
        """Compare the results of the watches, when only barriers and sessions still change."""
        deadline = time.monotonic() + PATIENCE
        while True:
            truth = {
                key: one
                for key, one in (await eventually(lambda: self.stores[0].scan(""))).items()
                if key.startswith("stream.")
            }
            views = [
                {key: one for key, one in view.items() if key.startswith("stream.")}
                for view in self.views
            ]
            if all(view == truth for view in views):
                return
            if time.monotonic() > deadline:
                self.problems.append(f"watches tell {views}, and the bucket holds {truth}")
                return
            await asyncio.sleep(0.5)

    # --- clients ---

    async def _write(self, store: NatsKvMetaStore) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(0.05, 0.4))
            key = self.rng.choice(KEYS)
            history = self.histories[key]
            try:
                began = time.monotonic()
                entry = await store.get(key)
                parent = label_of(entry and entry.value)
                history.seen.append(Seen(parent, began, time.monotonic(), is_confirmed=False))
            except StoreUnavailable:
                self.counts["get unavailable"] += 1
                continue
            self._numbers += 1
            label = str(self._numbers)
            await self._cas(store, key, label, parent, 0 if entry is None else entry.revision)

    async def _cas(
        self, store: NatsKvMetaStore, key: str, label: str, parent: str, revision: int
    ) -> None:
        began, outcome, made = time.monotonic(), "unknown", 0
        try:
            made = await store.cas(key, value_of(label, parent), revision)
            outcome = "made"
        except CasLost:
            outcome = "lost"
        except StoreUnavailable:
            outcome = "unavailable"
        except CasUnknown:
            pass
        finally:  # cancelled: unknown
            ended = time.monotonic()
            self.histories[key].written[label] = Written(label, parent, began, ended, outcome, made)
            self.counts[f"cas {outcome}"] += 1
            if outcome == "made":
                self.outages.append(ended - self.last_made)
                self.last_made = ended

    async def _read(self, store: NatsKvMetaStore) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(0.1, 0.8))
            key = self.rng.choice(KEYS)
            began = time.monotonic()
            try:
                entry = await store.get_newest(key)
            except StoreUnavailable:
                self.counts["get_newest unavailable"] += 1
                continue
            label = label_of(entry and entry.value)
            self.counts["get_newest"] += 1
            self.histories[key].seen.append(Seen(label, began, time.monotonic(), is_confirmed=True))

    async def _watch(self, store: NatsKvMetaStore, number: int) -> None:
        view = self.views[number]

        def note(key: str, entry: Entry | None) -> None:
            self.counts["notices"] += 1
            known = view.get(key)
            if entry is None:
                view.pop(key, None)
                return
            if known is not None and entry.revision <= known.revision:
                self.problems.append(f"a watch went back: {key} {known} {entry}")
            view[key] = entry

        await store.watch("", note)

    async def _be_node(self, store: NatsKvMetaStore, number: int) -> None:
        """Hold a session like a node, and count how often its deadline passes."""
        key, value = f"live.n{number}", json.dumps({"n": number}).encode()

        async def begin() -> NodeSession:
            found = await store.get(key)
            return await store.session(key, value, NODE_TTL, found.revision if found else 0)

        session = await eventually(begin)
        was_valid = True
        try:
            while True:
                is_valid = time.monotonic() < session.deadline
                self.counts["sessions lapsed"] += was_valid and not is_valid
                was_valid = is_valid
                await asyncio.sleep(0.1)
        finally:
            await session.abandon()

    async def _compete(self, store: NatsKvMetaStore, number: int, key: str, ttl: int) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(0.05, 0.5))
            self._numbers += 1
            holder = f"{number}-{self._numbers}"
            session = RenewedKey(store, key, json.dumps([holder]).encode(), ttl)
            try:
                if await store.get(key) is not None:
                    continue
                seen_free = time.monotonic()
                await session.begin(0)
            except (CasLost, CasUnknown, StoreUnavailable):
                continue
            self.counts["prizes held"] += 1
            index = len(self.held[key])
            self.held[key].append(Held(holder, seen_free, float("inf")))
            until = time.monotonic() + self.rng.uniform(1, 4 * ttl)
            gives_up = self.rng.random() < 0.3
            try:
                while time.monotonic() < min(until, session.deadline):
                    await asyncio.sleep(0.02)
            finally:
                deadline = session.deadline
                if gives_up or self._is_ending.is_set():
                    deadline = min(deadline, time.monotonic())
                self.held[key][index] = Held(holder, seen_free, deadline)
            if gives_up:
                await session.close()
            else:  # like a killed process: no more renewals
                await session.abandon()
                self.held[key][index] = Held(holder, seen_free, session.deadline)

    # --- faults ---

    async def leader(self) -> NatsServer:
        """Return the server that leads the bucket."""

        async def ask() -> str:
            link, bucket = self.stores[0]._link, self.stores[0].bucket
            subject = f"$JS.API.STREAM.INFO.{bucket.stream}"
            answer: dict[str, Any] = await link.ask(subject, b"", json.loads, seconds=2.0)
            return str(answer["cluster"]["leader"])

        name = await eventually(ask)
        return self.cluster.servers[int(name.removeprefix("n"))]

    async def fault(self) -> str:
        """Cause one fault, and repair it."""
        kinds: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("kill leader", self._kill_leader),
            ("kill leader", self._kill_leader),
            ("stop leader (SIGSTOP)", self._pause_leader),
            ("stop leader (SIGSTOP)", self._pause_leader),
            ("kill one", self._kill_one),
            ("stop one (SIGSTOP)", self._pause_one),
            ("terminate leader", self._terminate_leader),
            ("kill all", self._kill_all),
            ("kill two, one after the other", self._kill_two),
            ("isolate leader", self._isolate_leader),
            ("isolate leader", self._isolate_leader),
            ("isolate leader, one way", self._isolate_leader_one_way),
            ("separate two", self._separate_two),
        ]
        name, work = self.rng.choice(kinds)
        await work()
        self.counts[f"fault: {name}"] += 1
        return name

    async def recovered(self) -> float:
        """Return the seconds until each client has made a change again."""
        began = time.monotonic()
        for store in self.stores:

            async def change(store: NatsKvMetaStore = store) -> None:
                key = f"probe.{self.stores.index(store)}"
                entry = await store.get(key)
                await store.cas(key, b"{}", 0 if entry is None else entry.revision)

            await eventually(change)
        return time.monotonic() - began

    async def _down(self, server: NatsServer, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await asyncio.to_thread(server.start)

    async def _kill_leader(self) -> None:
        server = await self.leader()
        server.kill()
        await self._down(server, self.rng.uniform(0.1, 12))

    async def _terminate_leader(self) -> None:
        server = await self.leader()
        await asyncio.to_thread(server.stop)
        await self._down(server, self.rng.uniform(0.1, 6))

    async def _kill_one(self) -> None:
        server = self.rng.choice(self.cluster.servers)
        server.kill()
        await self._down(server, self.rng.uniform(0.1, 8))

    async def _kill_two(self) -> None:
        one, two = self.rng.sample(self.cluster.servers, 2)
        one.kill()
        await asyncio.sleep(self.rng.uniform(0, 5))
        two.kill()
        await self._down(one, self.rng.uniform(0.1, 6))
        await self._down(two, self.rng.uniform(0, 3))

    async def _kill_all(self) -> None:
        for server in self.cluster.servers:
            server.kill()
        await asyncio.sleep(self.rng.uniform(0.1, 6))
        for server in self.cluster.servers:
            await asyncio.to_thread(server.start)

    async def _pause(self, server: NatsServer, seconds: float) -> None:
        await asyncio.to_thread(server.pause)
        try:
            await asyncio.sleep(seconds)
        finally:
            server.resume()

    async def _pause_leader(self) -> None:
        await self._pause(await self.leader(), self.rng.uniform(2, 16))

    async def _isolate_leader(self) -> None:
        self.links.isolate(self._number(await self.leader()))
        await self._heal()

    async def _isolate_leader_one_way(self) -> None:
        hears = self.rng.random() < 0.5
        self.links.isolate(self._number(await self.leader()), hears=hears, is_heard=not hears)
        await self._heal()

    async def _separate_two(self) -> None:
        leader = self._number(await self.leader())
        others = [number for number in range(len(self.cluster.servers)) if number != leader]
        self.links.separate(leader, self.rng.choice(others))
        await self._heal()

    async def _heal(self) -> None:
        await asyncio.sleep(self.rng.uniform(3, 20))
        self.links.heal()

    def _number(self, server: NatsServer) -> int:
        return self.cluster.servers.index(server)

    async def _pause_one(self) -> None:
        await self._pause(self.rng.choice(self.cluster.servers), self.rng.uniform(2, 16))


async def eventually(call: Callable[[], Awaitable[Any]], seconds: float = PATIENCE) -> Any:
    """Return the result as soon as the store answers."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return await call()
        except _TRANSIENT as error:
            if time.monotonic() > deadline:
                raise AssertionError(f"for {seconds:g} s: {error!r}") from error
            await asyncio.sleep(0.1)
