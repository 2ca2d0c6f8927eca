"""The metadata store in JetStream while its three servers are killed, stopped and disconnected, and
the checker of the results."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
from support.clients.store_campaign import Campaign
from support.daemons.nats_cluster import NatsCluster
from support.daemons.nats_links import NatsLinks
from support.worlds.store_history import START, Held, KeyHistory, Seen, Written, overlaps

pytestmark = pytest.mark.integration

MINUTES = float(os.environ.get("KV_TORTURE_MINUTES", "0"))
SEED = int(os.environ.get("KV_TORTURE_SEED", "1"))


@pytest.mark.timeout(MINUTES * 60 + 600)
@pytest.mark.skipif(not MINUTES, reason="make kv-torture")
async def test_faults_of_the_servers(tmp_path: Path) -> None:
    links = NatsLinks(3)
    await links.start()
    cluster = NatsCluster(3, tmp_path, links=links, jetstream=True, sync_always=True)
    links.connect(cluster.route_ports)
    try:
        await asyncio.to_thread(cluster.__enter__)  # the links are in this event loop
        campaign = Campaign(cluster, links, SEED)
        await campaign.start()
        until = time.monotonic() + 60 * MINUTES
        slowest = 0.0
        while time.monotonic() < until and not campaign.problems:
            await asyncio.sleep(campaign.rng.uniform(1, 12))
            name = await campaign.fault()
            seconds = await campaign.recovered()
            slowest = max(slowest, seconds)
            print(f"{time.strftime('%X')} {name}: {seconds:.1f} s until all go on", flush=True)
        problems = await campaign.end()
        outages = sorted(one for one in campaign.outages if one > 1)
        print(f"slowest {slowest:.1f} s; without changes: {[round(one, 1) for one in outages]}")
        for what, count in sorted(campaign.counts.items()):
            print(f"{count:8,} {what}")
        assert not problems, "\n".join(problems[:20])
        assert campaign.counts["cas made"] > 60 * MINUTES
        assert campaign.counts["prizes held"] > MINUTES
    finally:
        await asyncio.to_thread(cluster.__exit__, None, None, None)
        await links.close()


# --- the checker ---


def written(label: str, parent: str, at: float, outcome: str = "made") -> Written:
    return Written(label, parent, at, at + 0.5, outcome, int(at) if outcome == "made" else 0)


def history(*changes: Written) -> KeyHistory:
    return KeyHistory({one.label: one for one in changes})


SOUND = (
    written("a", START, 1),
    written("lost", START, 1, "lost"),
    written("b", "a", 2),
    written("applied", "b", 3, "unknown"),
    written("not", "b", 3, "unknown"),
    written("c", "applied", 4),
)


def test_a_sound_history() -> None:
    sound = history(*SOUND)
    sound.seen = [
        Seen(START, 0.1, 0.2, is_confirmed=True),
        Seen("b", 2.1, 2.2, is_confirmed=True),
        Seen("a", 2.6, 2.7, is_confirmed=False),
        Seen("c", 4.6, 4.7, is_confirmed=True),
    ]
    assert sound.problems("c") == []
    assert overlaps([Held("x", 1, 4), Held("y", 4.5, 7)]) == []


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (written("d", "b", 5), "lost"),
        (written("d", "applied", 4), "lost"),
    ],
)
def test_a_change_that_is_not_in_the_history_is_found(change: Written, finding: str) -> None:
    assert finding in history(*SOUND, change).problems("c")[0]


def test_what_else_is_found() -> None:
    assert "was not" in history(*SOUND, written("d", "c", 5, "lost")).problems("d")[0]
    assert "no client" in history(*SOUND).problems("ghost")[0]
    late = history(*SOUND[:3], Written("c", "b", 0.1, 0.2, "made", 9))
    assert any("before a change" in one for one in late.problems("c"))
    back = history(*SOUND[:2], Written("b", "a", 2, 2.5, "made", 1))
    assert "do not rise" in back.problems("b")[0]
    for seen, finding in (
        (Seen("lost", 5, 5.1, is_confirmed=False), "gone later"),
        (Seen("a", 2.6, 2.7, is_confirmed=True), "went back"),
        (Seen(START, 2.6, 2.7, is_confirmed=True), "went back"),
        (Seen("c", 2.6, 2.7, is_confirmed=True), "before it was written"),
    ):
        read = history(*SOUND)
        read.seen = [seen]
        assert any(finding in one for one in read.problems("c")), seen
    assert "overlaps" in overlaps([Held("x", 1, 4), Held("y", 3.9, 7)])[0]
