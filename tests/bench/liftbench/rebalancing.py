"""Kills members of a group and lets others join while messages arrive. Measures how soon other
members read the slots of a killed member, and whether unmoved slots are delayed.

A process that starts uses a core for some tenths of a second. So plain readers are killed and
started, too, while no slot moves. Their delays are the reference for the delays of members while
slots move.
"""

from __future__ import annotations

import json
import math
import signal
import statistics
import time
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from liftlog.client import SyncClient, connect_sync

from .consuming import consumers
from .figures import Measurements
from .processes import WorkerFailed, worker
from .progress import Progress
from .systems import LIFTLOG, Liftlog

_MEMBERS = 4
_SESSION = 1.0
_RATE = 2000
_SUBJECTS = 1000
_SETTLE_SECONDS = 2.0
_NEAR_SECONDS = 0.5
"""Seconds after a gained or lost slot for which the group does not count as quiet."""


class Kill(NamedTuple):
    at: float
    slots: set[int]


class Happened(NamedTuple):
    """Times of events. `beside`: times at which a plain reader joined, or at which the session of a
    killed one would have ended. `ended`: time at which the members were stopped; each then uses a
    core to report its results."""

    kills: list[Kill]
    beside: list[float]
    ended: float = math.inf


def rebalancing(
    directory: Path, measured: Measurements, progress: Progress, *, rounds: int
) -> None:
    """Kill one member and let one join in each round, and do the same with a plain reader."""
    with Liftlog(directory / "rebalancing") as system, ExitStack() as stack:
        system.create("moved", "bench.moved.*")
        names = count()
        running: dict[str, Any] = {}

        def start() -> None:
            name = f"m{next(names)}"
            spec = {"mode": "group_member", "address": system.daemon.pull_address, "count": 1,
                    "stream": "moved", "member": name, "session": _SESSION}  # fmt: skip
            running[name] = stack.enter_context(consumers(spec))

        def start_reader() -> Any:
            spec = {"mode": "tail", "address": system.daemon.pull_address, "count": 1,
                    "stream": "moved", "start": "latest", "records": None}  # fmt: skip
            return stack.enter_context(consumers(spec))

        for _ in range(_MEMBERS):
            start()
        reader = start_reader()
        seconds = rounds * (2 * _SESSION + 4 * _SETTLE_SECONDS + 5) + 10
        pace = {"port": system.port, "subject": "bench.moved", "rate": _RATE, "seconds": seconds,
                "payload_bytes": 256, "subjects": _SUBJECTS}  # fmt: skip
        stack.enter_context(worker("pacer", pace))
        happened = Happened([], [])
        with connect_sync(system.daemon.pull_address) as client:
            for _ in range(rounds):
                _wait_until_shared(client, len(running))
                time.sleep(_SETTLE_SECONDS)
                name = list(running)[-1]  # the other members report their records at the end
                info = client.describe_group("moved", "moved")
                assert info is not None
                victim = running.pop(name)
                victim.kill()
                slots = {slot for slot, owner in enumerate(info.owners) if owner == name}
                happened.kills.append(Kill(time.time(), slots))
                _wait_until_shared(client, len(running))
                time.sleep(_SETTLE_SECONDS)
                start()
                _wait_until_shared(client, len(running))
                time.sleep(_SETTLE_SECONDS)
                reader.kill()
                happened.beside.append(time.time() + _SESSION)
                time.sleep(_SESSION + _SETTLE_SECONDS)
                reader = start_reader()
                happened.beside.append(time.time())
            time.sleep(_SETTLE_SECONDS)
        happened = happened._replace(ended=time.time())
        told = []
        for process in running.values():
            process.send_signal(signal.SIGTERM)
            told.append(json.loads(process.communicate(timeout=60)[0].splitlines()[-1]))
    _judge(told, happened, measured, progress)


def _wait_until_shared(client: SyncClient, members: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        info = client.describe_group("moved", "moved")
        if info is not None and len(info.members) == members and "" not in info.owners:
            counts = [one["slots"] for one in info.members]
            if max(counts) - min(counts) <= 1:
                return
        if time.monotonic() > deadline:
            raise WorkerFailed(f"the group does not settle: {info}")
        time.sleep(0.02)


def _judge(
    told: Sequence[Any], happened: Happened, measured: Measurements, progress: Progress
) -> None:
    kills = happened.kills
    for kill in kills:
        first: dict[int, float] = {}
        for one in told:
            for at, slot, _ in one["records"]:
                if at > kill.at and slot in kill.slots:
                    first[slot] = min(at, first.get(slot, at))
        if first.keys() < kill.slots:
            raise WorkerFailed(f"no one reads {sorted(kill.slots - first.keys())}")
        measured.add(LIFTLOG, "group-takeover", max(first.values()) - kill.at - _SESSION)
    rounds = _delays(told, happened)
    for name in ("near", "beside", "quiet"):
        for found in rounds:
            measured.add(LIFTLOG, f"group-delay-{name}", _p99(found[name]))
    took = sorted(measured.samples[LIFTLOG, "group-takeover"])
    near, beside, quiet = [
        f"{_p99(all_of) * 1e3:.0f} and {max(all_of) * 1e3:.0f} ms"
        for name in ("near", "beside", "quiet")
        if (all_of := [delay for found in rounds for delay in found[name]])
    ]
    progress.say(
        f"{len(kills)} kills: others read all slots of the killed member within its session plus "
        f"{', '.join(f'{one:.2f}' for one in took)} s; p99 and longest delay of slots that stay: "
        f"{near} while slots move ({sum([len(found['near']) for found in rounds]):,} records), "
        f"{beside} while plain readers are killed and start, else {quiet}; p99 of each round to "
        f"that beside plain readers: {_ratios(rounds, 'near')} while slots move, "
        f"{_ratios(rounds, 'quiet')} when nothing does"
    )


def _delays(told: Sequence[Any], happened: Happened) -> list[dict[str, list[float]]]:
    """Return the delays of the records in each round. Varying load on the machine affects the
    compared times in the same way."""
    kills = happened.kills
    changes = sorted([at for one in told for at, _ in one["moves"] if at > kills[0].at])
    begins = [kill.at - _SETTLE_SECONDS for kill in kills]
    rounds: list[dict[str, list[float]]] = [{"near": [], "beside": [], "quiet": []} for _ in kills]
    for one in told:
        moves = [(at, set(slots)) for at, slots in one["moves"]]
        for at, slot, delay in one["records"]:
            if not begins[0] <= at < happened.ended:
                continue
            found = rounds[bisect_right(begins, at) - 1]
            if _is_near(at, changes):
                if not any(abs(at - when) < 2 and slot in slots for when, slots in moves):
                    found["near"].append(delay)
            else:
                found["beside" if _is_near(at, happened.beside) else "quiet"].append(delay)
    return rounds


def _is_near(at: float, times: Sequence[float]) -> bool:
    return any(0 <= at - one <= _NEAR_SECONDS for one in times)


def _p99(delays: Sequence[float]) -> float:
    return statistics.quantiles(delays, n=100)[98]


def _ratios(rounds: Sequence[dict[str, list[float]]], name: str) -> str:
    found = sorted([_p99(one[name]) / _p99(one["beside"]) for one in rounds])
    return ", ".join(f"{one:.2f}" for one in found)
