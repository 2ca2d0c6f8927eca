"""Runs members of a consumer group as processes, and checks their reports.

Each member writes a report to its own file, with the clock that all processes share. The report
contains the times of requests for records and of returned records, the slots that the member gains
and loses, and the offsets that it knows to be committed. `check` compares the reports with the
stream.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c
from support.clients.ingesting import publish_until_acked, until
from support.clients.raw_nats import RawNats, pub_frame
from support.repository import REPOSITORY
from support.rounds import chance_of

from liftlog.client import GroupInfo, SyncClient, connect_sync
from liftlog.errors import LiftlogError

SLOTS = 64
SUBJECTS = 200
GROUP, STREAM = "billing", "orders"

WORKER = """
import asyncio, os, random, signal, sys, time
from crc32c import crc32c
from liftlog.client import connect
from liftlog.errors import ConnectionLost

address, name, path, session, static = sys.argv[1:]
chance = random.Random(name)

def say(what, *numbers):
    os.write(out, (" ".join([what, *map(repr, numbers)]) + "\\n").encode())

async def main():
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    global out
    out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while True:
        try:
            client = await connect(address)
            break
        except ConnectionLost:
            await asyncio.sleep(0.1)
    async with client:
        group = client.group(
            "billing", "orders",
            member=name if static == "yes" else None,
            session=float(session),
            commit_every=chance.choice((10, 50, 200)),
            commit_interval=0.1,
            on_assigned=lambda slots: say("+", time.monotonic(), state.deadline, *slots),
            on_revoked=lambda slots: say("-", time.monotonic(), *slots),
        )
        state = group._state
        committed = state.committed
        def confirmed(joined, offsets, sent):
            committed(joined, offsets, sent)
            say("c", time.monotonic(), *[one for pair in offsets.items() for one in pair])
        state.committed = confirmed
        stop = asyncio.create_task(ended.wait())
        async with group:
            asked, got = time.monotonic(), None
            while not ended.is_set():
                waiting = asyncio.ensure_future(anext(group))
                await asyncio.wait([waiting, stop], return_when=asyncio.FIRST_COMPLETED)
                if not waiting.done():
                    waiting.cancel()
                    await asyncio.wait([waiting])
                    if waiting.cancelled():
                        break
                record = waiting.result()
                say("r", asked, time.monotonic(), record.offset)
                if chance.random() < 0.01:
                    await asyncio.sleep(chance.random() * 0.05)
                asked = time.monotonic()
        say("e", time.monotonic())

asyncio.run(main())
"""


class Returned(NamedTuple):
    asked: float
    at: float
    offset: int
    tenure: int
    """Number of times that the member gained this slot."""


class Member:
    """A process."""

    def __init__(
        self, addresses: Sequence[str], name: str, directory: Path, session: float, *, static: bool
    ) -> None:
        self.name = name
        self.static = static
        self.path = directory / f"{name}.{time.monotonic_ns()}.said"
        self.complaints = self.path.with_suffix(".err")
        with self.complaints.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", WORKER, ",".join(addresses), name, str(self.path),
                 str(session), "yes" if static else "no"],
                stderr=errors,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            )  # fmt: skip
        self.paused = False
        self.works = False
        """True if the member has received a record."""
        self.commits = 0
        """Number of confirmed commits."""
        self.gains: list[tuple[float, set[int]]] = []
        self.slots: set[int] = set()
        """The present slots of the member."""
        self._lines: list[list[str]] = []
        self._read = 0

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        """Send SIGTERM. The member commits and leaves, unless it has not started completely."""
        self.resume()
        begun = self.path.exists()
        self.signal(signal.SIGTERM)
        code = self.process.wait(60)
        assert code == 0 or not begun, self.complaints.read_text()

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        if self.paused:
            self.signal(signal.SIGCONT)
            self.paused = False

    def lines(self) -> list[list[str]]:
        """Return all lines of the report, divided into words."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._read)
            more, end, _ = file.read().rpartition(b"\n")
        self._read += len(more) + len(end)
        for line in more.decode().splitlines():
            words = line.split()
            self._lines.append(words)
            if words[0] == "+":
                gained = set(map(int, words[3:]))
                self.gains.append((float(words[1]), gained))
                self.slots |= gained
            elif words[0] == "-":
                self.slots -= set(map(int, words[2:]))
            self.works = self.works or words[0] == "r"
            self.commits += words[0] == "c"
        return self._lines


class Publisher(threading.Thread):
    """Publishes messages on many subjects at a steady rate. The stream shows which messages were
    stored."""

    def __init__(self, port: int, per_second: int) -> None:
        super().__init__(name="publisher")
        self._port = port
        self._per_second = per_second
        self._ended = threading.Event()

    def run(self) -> None:
        number = 0
        chance = random.Random(1)
        with RawNats(self._port) as raw:
            began = time.monotonic()
            while not self._ended.wait(0.01):
                due = int((time.monotonic() - began) * self._per_second) - number
                subjects = [chance.randrange(SUBJECTS) for _ in range(due)]
                raw.send(b"".join([pub_frame(f"orders.{one}", b"x" * 20) for one in subjects]))
                number += due
            # At this time, all earlier messages have their offsets.
            publish_until_acked(raw, "orders.0", b"", "the last one")

    def end(self) -> None:
        self._ended.set()
        self.join()


class Campaign:
    """Causes faults of the members, one in each round. The caller adds faults of the daemon."""

    def __init__(
        self,
        addresses: Sequence[str],
        directory: Path,
        seed: str,
        *,
        session: float,
        most: int = 6,
    ) -> None:
        self.chance = chance_of(seed)
        self.members: list[Member] = []
        self.all: list[Member] = []
        self.session = session
        self.took: list[float] = []
        """Times from the kill of a member until others were assigned all of its slots."""
        self.acts: dict[str, int] = defaultdict(int)
        self._addresses = addresses
        self._directory = directory
        self._most = most

    # --- acts ---

    def join(self) -> None:
        static = self.chance.random() < 0.5
        names = {one.name for one in self.members}
        free = [f"w{number}" for number in range(9) if f"w{number}" not in names]
        name = self.chance.choice(free)
        if not static:
            name = f"{name}x{len(self.all)}"
        one = Member(self._addresses, name, self._directory, self.session, static=static)
        self.members.append(one)
        self.all.append(one)

    def leave(self) -> None:
        one = self.members.pop(self.chance.randrange(len(self.members)))
        one.end()

    def kill(self) -> None:
        """Kill a member, and wait until other members have its slots, unless something prevents
        this."""
        one = self.members.pop(self.chance.randrange(len(self.members)))
        one.kill()
        killed_at = time.monotonic()
        self._hear(one)
        self._hear(*self.members)
        others = [member for member in self.members if not member.paused and member.works]
        had = self._owned_by(one)
        if not others or not had or one.paused:
            return
        deadline = killed_at + self.session + 60
        while True:
            self._hear(*self.members)
            gained: dict[int, float] = {}
            for member in self.members:
                for at, slots in member.gains:
                    if at > killed_at:
                        gained |= dict.fromkeys(slots - gained.keys(), at)
            if had <= gained.keys():
                self.took.append(max(gained[slot] for slot in had) - killed_at)
                return
            assert time.monotonic() < deadline, f"no one has {sorted(had - gained.keys())}"
            time.sleep(0.02)

    def _owned_by(self, one: Member) -> set[int]:
        """Return the slots of a member. A member that was stopped may not have received yet that
        other members gained its slots."""
        self._hear(*self.all)
        gained = {slot: at for at, slots in one.gains for slot in slots}
        later = {
            slot
            for other in self.all
            if other is not one
            for at, slots in other.gains
            for slot in slots
            if at > gained.get(slot, at)
        }
        return one.slots - later

    def _hear(self, *members: Member) -> None:
        for member in members:
            member.lines()

    def pause(self) -> None:
        running = [one for one in self.members if not one.paused]
        if running:
            self.chance.choice(running).pause()

    def resume(self) -> None:
        for one in self.members:
            one.resume()

    def wait_until_they_work(self) -> None:
        def all_work() -> bool:
            self._hear(*self.members)
            return all(one.works for one in self.members)

        until(all_work, 120, "all members were given records")

    def wait_until_they_are_members(self, described: Callable[[], GroupInfo]) -> None:
        """Wait until the daemon has exactly these members, no slot has to move, and each member
        knows its slots. A member that was stopped may have lost its session. The first commit that
        it then reports may be one that was answered before the stop."""
        self._hear(*self.members)
        enough = {one: one.commits + 2 for one in self.members}

        def all_are() -> bool:
            self._hear(*self.members)
            if any(one.commits < count for one, count in enough.items()):
                return False
            found = described()
            owned: dict[str, list[int]] = {one["name"]: [] for one in found.members}
            for slot, owner in enumerate(found.owners):
                owned.setdefault(owner, []).append(slot)
            sizes = [*map(len, owned.values())]
            return (
                sorted(owned.values()) == sorted(sorted(one.slots) for one in self.members)
                and max(sizes) - min(sizes) <= 1
            )

        until(all_are, 120, "these are the members, and have what they are to have")

    def round(self, more: Iterable[tuple[str, Callable[[], None]]] = ()) -> None:
        """Run one round. `more` are actions on the daemon, by name."""
        acts: list[tuple[str, Callable[[], None]]] = [*more, ("pause", self.pause)]
        if len(self.members) < self._most:
            acts += [("join", self.join)] * 3
        if len(self.members) > 1:
            acts += [("leave", self.leave), ("kill", self.kill)]
        name, act = self.chance.choice(acts)
        self.acts[name] += 1
        act()
        time.sleep(self.chance.random() * self.session * self.chance.choice((0.1, 0.3, 1.5)))
        if self.chance.random() < 0.6:
            self.resume()

    # --- the end ---

    def finish(self, described: Callable[[], GroupInfo], end: int) -> None:
        """Let the remaining members read all records, and end them."""
        self.resume()
        if not self.members:
            self.join()
        # On a busy machine, members may be far behind.
        until(lambda: min(described().offsets, default=0) >= end, 900, "all is committed")
        for one in self.members:
            one.end()
        self.members = []

    def close(self) -> None:
        for one in self.all:
            if one.process.poll() is None:
                one.process.kill()
                one.process.wait()

    # --- what they said ---

    def check(self, slots: Sequence[int]) -> str:
        """Check the reports. `slots` contains the slot of each offset of the stream, from 1 on.
        Returns some figures."""
        for one in self.all:
            assert "Traceback" not in one.complaints.read_text(), one.complaints.read_text()
        gains: dict[int, list[tuple[float, int]]] = defaultdict(list)  # slot -> (time, process)
        returned: dict[int, list[tuple[Returned, int]]] = defaultdict(list)
        commits: dict[int, list[tuple[float, int]]] = defaultdict(list)
        for process, one in enumerate(self.all):
            self._read(process, one, slots, gains, returned, commits)
        for slot in range(SLOTS):
            check_slot(
                [number for number, its in enumerate(slots, 1) if its == slot],
                sorted(gains[slot]),
                sorted(returned[slot], key=lambda entry: entry[0].at),
                sorted(commits[slot]),
            )
        count = sum(map(len, returned.values()))
        again = count - len(slots)
        took = sorted(self.took) or [0.0]
        return (
            f"{sum(self.acts.values())} rounds {dict(self.acts)}, {len(self.all)} processes, "
            f"{len(slots)} records, {again} again; slots of a killed member, with sessions of "
            f"{self.session} s: p50 {took[len(took) // 2]:.2f}, most {took[-1]:.2f} s"
        )

    def _read(
        self,
        process: int,
        one: Member,
        slots: Sequence[int],
        gains: dict[int, list[tuple[float, int]]],
        returned: dict[int, list[tuple[Returned, int]]],
        commits: dict[int, list[tuple[float, int]]],
    ) -> None:
        has: dict[int, int] = {}
        late: dict[int, float] = {}  # slot -> when gained, after its session
        tenure = 0
        for words in one.lines():
            kind, at = words[0], float(words[1])
            if kind == "+":
                tenure += 1
                for slot in map(int, words[3:]):
                    has[slot] = tenure
                    if at < float(words[2]):
                        gains[slot].append((at, process))
                    else:
                        late[slot] = at  # it begins only if its next heartbeat is answered
            elif kind == "-":
                for slot in map(int, words[2:]):
                    del has[slot]
                    late.pop(slot, None)
            elif kind == "r":
                offset = int(words[3])
                slot = slots[offset - 1]
                assert slot in has, f"{one.name} was given {offset} of {slot}, not its own"
                if slot in late:
                    gains[slot].append((late.pop(slot), process))
                entry = Returned(at, float(words[2]), offset, has[slot])
                returned[slot].append((entry, process))
            elif kind == "c":
                numbers = list(map(int, words[2:]))
                for slot, offset in zip(numbers[::2], numbers[1::2], strict=True):
                    commits[slot].append((at, offset))


def check_slot(
    stored: Sequence[int],
    gains: Sequence[tuple[float, int]],
    returned: Sequence[tuple[Returned, int]],
    commits: Sequence[tuple[float, int]],
) -> None:
    """Check one slot. All arguments are in the order of their times. `stored` are the offsets of
    the records of this slot."""
    last: dict[tuple[int, int], int] = {}
    times = [at for at, _ in gains]
    ended = [at for at, _ in commits]
    highest = [0]
    for _, offset in commits:
        highest.append(max(highest[-1], offset))
    first: dict[int, float] = {}
    for entry, process in returned:
        # Each member in order.
        key = (process, entry.tenure)
        assert entry.offset > last.get(key, 0), f"{entry} after {last[key]}"
        last[key] = entry.offset
        first.setdefault(entry.offset, entry.at)
        # One owner: no other member had gained the slot when this member requested the record.
        place = bisect_left(times, entry.asked) - 1
        if place >= 0:
            owner = gains[place][1]
            mine = [at for at, its in gains if its == process and at <= entry.at]
            assert owner == process or (mine and mine[-1] >= gains[place][0]), (
                f"{entry} went to {process}, but {owner} had gained it at {gains[place][0]}"
            )
        # Only uncommitted records are returned again.
        known = highest[bisect_left(ended, entry.asked)]
        assert entry.offset >= known, f"{entry}: all below {known} was committed"
    # Only returned records are committed, and at the end all records are committed.
    for at, offset in commits:
        missing = [
            one
            for one in stored[
                max(bisect_left(stored, offset) - 50, 0) : bisect_left(stored, offset)
            ]
            if first.get(one, at) >= at
        ]
        assert not missing, f"{missing[:5]} were not returned when {offset} was committed"
    assert not [one for one in stored if one not in first]


def slots_of_stream(client: SyncClient) -> list[int]:
    """Return the slot of each offset, from 1 on."""
    found: list[int] = []
    for batch in client.read_batches(STREAM, until="end"):
        assert batch.base_offset == len(found) + 1
        found += [crc32c(subject) * SLOTS >> 32 for subject in batch.raw_subjects()]
    return found


def described_at(addresses: Sequence[str]) -> GroupInfo:
    with suppress(LiftlogError), connect_sync(",".join(addresses)) as client:
        return client.describe_group(GROUP, STREAM) or GroupInfo()
    return GroupInfo()
