"""A consumer group during the faults of a campaign. Its members die now and then, and other members
join.

Each run of a member records the returned records with their times, the slots that it gained and
lost, and the offsets that it knows to be committed. At the end these records are compared with the
stream, as in `group_campaign`, whose members are processes: each slot is read in order, by one
owner at a time, no record is skipped, and only uncommitted records are returned again.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Sequence

from support.clients.group_campaign import SLOTS, Returned, check_slot
from support.clients.replicated_readers import CampaignReader
from support.daemons.cluster import NODES, PATIENCE, Cluster
from support.rounds import chance_of
from support.worlds.history import Reading

from liftlog.client import SyncClient, SyncGroupConsumer, connect_sync
from liftlog.client.groups.arrived import slots_of
from liftlog.errors import Diverged, LiftlogError

GROUP = "campaign"
_SESSION_SECONDS = 6.0
_MEMBERS = 3
_LOOK_SECONDS = 0.2
_CATCH_UP_SECONDS = 300.0


class Life(threading.Thread):
    """One run of a member, from its first request to its end. A killed member neither commits nor
    leaves: its connections end, like those of a killed process."""

    def __init__(self, addresses: str, stream: str, name: str | None, interval: float) -> None:
        super().__init__(name=f"member-{name}", daemon=True)
        self.member = name
        self.gains: list[tuple[float, list[int]]] = []
        self.returned: list[tuple[Returned, int]] = []
        """Returned records with their slots."""
        self.commits: list[tuple[float, dict[int, int]]] = []
        self.error: BaseException | None = None
        self._addresses, self._stream, self._interval = addresses, stream, interval
        self._owned: dict[int, int] = {}
        self._late: set[int] = set()
        """The gained slots that the member received after the end of its session. It may begin with
        them if a heartbeat is answered."""
        self._tenure = 0
        self._is_killed = False
        self._group: SyncGroupConsumer | None = None

    def stop(self, *, kill: bool) -> None:
        """Returns at once."""
        self._is_killed = kill
        if self._group is not None:
            self._group.stop()

    def run(self) -> None:
        try:
            with connect_sync(self._addresses, connect_timeout=2, reconnect_for=PATIENCE) as client:
                self._consume(client)
        except (AssertionError, Diverged) as error:
            self.error = error
        except (LiftlogError, OSError):
            pass  # nodes are down, or damaged: another run begins

    def _consume(self, client: SyncClient) -> None:
        group = client.group(
            GROUP,
            self._stream,
            member=self.member,
            session=_SESSION_SECONDS,
            slots=SLOTS,
            commit_interval=self._interval,
            on_assigned=self._gain,
            on_revoked=self._lose,
        )
        self._group = group
        state = self._state = group._state
        committed = state.committed

        def note(joined: int, offsets: dict[int, int], sent: float) -> None:
            committed(joined, offsets, sent)
            self.commits.append((time.monotonic(), dict(offsets)))

        state.committed = note  # type: ignore[method-assign]
        asked = time.monotonic()
        try:
            for record in group:
                slot = group.slot_of(record)
                assert slot in self._owned, f"{record.offset} of slot {slot}, which is not its own"
                one = Returned(asked, time.monotonic(), record.offset, self._owned[slot])
                self.returned.append((one, slot))
                if slot in self._late:
                    self._late.discard(slot)
                    self.gains.append((asked, [slot]))
                asked = time.monotonic()
            if not self._is_killed:
                group.close()
        finally:
            group._end()

    def _gain(self, slots: Sequence[int]) -> None:
        assert self._group is not None
        self._tenure += 1
        self._owned |= dict.fromkeys(slots, self._tenure)
        now = time.monotonic()
        if now < self._state.deadline:
            self.gains.append((now, list(slots)))
        else:
            self._late.update(slots)

    def _lose(self, slots: Sequence[int]) -> None:
        for slot in slots:
            del self._owned[slot]
            self._late.discard(slot)


class GroupReader(CampaignReader):
    """Keeps some members of one stream running. `finish` lets them read all records, and checks the
    results."""

    NAME = "group-reader"

    def __init__(self, cluster: Cluster, stream: str) -> None:
        super().__init__(cluster, [stream])
        self.summary = ""
        self._chance = chance_of(f"group of {stream}")
        self._stream = stream
        nodes = (cluster.nodes[name] for name in NODES)
        self._addresses = ",".join(node.settings["cluster"]["advertise"] for node in nodes)
        self._lives: list[Life] = []
        self._all: list[Life] = []
        self._killed = 0

    def finish(self) -> None:
        self._stop_asked.set()
        self.join(_CATCH_UP_SECONDS + 2 * PATIENCE)
        assert not self.is_alive(), f"{self.name} does not end"
        if self.error is not None:
            raise self.error
        print(self.summary, flush=True)

    def take(self, stream: str) -> list[Reading]:
        return []

    def run(self) -> None:
        try:
            change_at = time.monotonic() + 5.0
            while not self._stop_asked.wait(_LOOK_SECONDS):
                self._replace()
                if time.monotonic() >= change_at:
                    change_at = time.monotonic() + self._chance.uniform(2, 12)
                    self._end_one()
            self._end_all()
        except Exception as error:  # told by `finish`
            self.error = error
        finally:
            for life in self._lives:
                life.stop(kill=True)

    def _replace(self) -> None:
        """Replace members. Two or three members run, half of them with a chosen name."""
        for life in self._lives:
            if life.error is not None:
                raise life.error
        self._lives = [life for life in self._lives if life.is_alive()]
        names = {life.member for life in self._lives}
        while len(self._lives) < _MEMBERS - (self._chance.random() < 0.2):
            free = [name for name in ("one", "two", "three", None, None) if name not in names]
            name = self._chance.choice(free)
            life = Life(self._addresses, self._stream, name, self._chance.choice([0.1, 1.0, 4.0]))
            names.add(name)
            self._lives.append(life)
            self._all.append(life)
            life.start()

    def _end_one(self) -> None:
        life, kill = self._chance.choice(self._lives), self._chance.random() < 0.7
        self._killed += kill
        life.stop(kill=kill)

    def _end_all(self) -> None:
        end = self._cluster.wait_settled(self._stream)
        deadline = time.monotonic() + _CATCH_UP_SECONDS
        while not self._has_committed(end):
            assert time.monotonic() < deadline, f"not all below {end} is committed"
            self._replace()
            time.sleep(_LOOK_SECONDS)
        for life in self._lives:
            life.stop(kill=False)
        for life in self._all:
            life.join(PATIENCE)
            assert not life.is_alive(), f"{life.name} does not end"
            if life.error is not None:
                raise life.error
        self._check()

    def _has_committed(self, end: int) -> bool:
        with connect_sync(self._addresses, connect_timeout=2) as client:
            found = client.describe_group(GROUP, self._stream)
        return found is not None and min(found.offsets, default=0) >= end

    def _check(self) -> None:
        stored: dict[int, list[int]] = defaultdict(list)
        with connect_sync(self._addresses) as client:
            for record in client.read(self._stream, until="end"):
                stored[slots_of((record,), SLOTS)[0]].append(record.offset)
        gains: dict[int, list[tuple[float, int]]] = defaultdict(list)
        returned: dict[int, list[tuple[Returned, int]]] = defaultdict(list)
        commits: dict[int, list[tuple[float, int]]] = defaultdict(list)
        for number, life in enumerate(self._all):
            for at, slots in life.gains:
                for slot in slots:
                    gains[slot].append((at, number))
            for one, slot in life.returned:
                returned[slot].append((one, number))
            for at, offsets in life.commits:
                for slot, offset in offsets.items():
                    commits[slot].append((at, offset))
        for slot in range(SLOTS):
            check_slot(
                stored[slot],
                sorted(gains[slot]),
                sorted(returned[slot], key=lambda entry: entry[0].at),
                sorted(commits[slot]),
            )
        count = sum(map(len, stored.values()))
        again = sum(map(len, returned.values())) - count
        self.summary = (
            f"a group of {len(self._all)} members, {self._killed} of them killed: "
            f"{count} records, {again} again"
        )
