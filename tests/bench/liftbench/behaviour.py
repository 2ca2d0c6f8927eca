"""Two figures that are no speeds: the effect of a flood without acks, and the cost of idling."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from liftlog.settings import Settings

from .figures import FLOODS, Measurements
from .processes import run_worker, settle_disk
from .progress import Progress
from .systems import DEFAULT, LIFTLOG, JetStream, Liftlog, wait_until_still

_FLOOD_BYTES = 128
_IDLE_STREAMS = 100
_SETTLE_SECONDS = 5.0


def flood(directory: Path, measured: Measurements, progress: Progress, *, repeats: int) -> None:
    """Publish over one connection without requesting acks, as fast as nats-server accepts messages.

    The result is counted by the client. The daemon is new, so its peak memory is caused by the
    flood.
    """
    bound = Settings().ingest.max_pending_bytes
    for count in FLOODS:
        for number in range(repeats):
            settle_disk()
            with Liftlog(directory / f"flood-{count}-{number}") as system:
                system.create("flood", "bench.flood")
                before = system.daemon.rss_bytes
                rate = _flood(system.port, count)
                stored = wait_until_still(system, "flood")
                growth = system.daemon.peak_rss_bytes - before
                measured.add(LIFTLOG, f"flood-{count}", stored)
                measured.add(LIFTLOG, f"flood-{count}-rate", rate)
                measured.add(LIFTLOG, f"flood-{count}-peak-rss", system.daemon.peak_rss_bytes)
                measured.add(LIFTLOG, f"flood-{count}-memory-share", growth / bound)
                progress.say(
                    f"flood {count:,} at {rate:,.0f}/s: {stored:,} stored, memory grew by "
                    f"{growth / 2**20:.0f} MiB of the {bound / 2**20:.0f} MiB allowed"
                )
                if stored < count:
                    progress.say(f"  lost {count - stored:,}: {_where_lost(system)}")


def _where_lost(system: Liftlog) -> str:
    """Return the reason for lost messages: NATS closed the connection of a slow consumer, or the
    stream refused them."""
    counts = []
    for metric in (
        "liftlog_nats_disconnects_total",
        "liftlog_nats_slow_consumer_errors_total",
        "liftlog_possible_loss_events_total",
        "liftlog_refused_total",
    ):
        with contextlib.suppress(KeyError):  # a labelled metric exists only after its first count
            counts.append(f"{metric}={system.daemon.metric(metric):,.0f}")
    return " ".join(counts)


def flood_jetstream(directory: Path, measured: Measurements, progress: Progress) -> None:
    """Measure, for comparison only, how many messages of the same flood JetStream stores."""
    for count in FLOODS:
        settle_disk()
        with JetStream(directory / f"flood-jetstream-{count}", always=False) as system:
            system.create("flood", "bench.flood")
            rate = _flood(system.port, count)
            stored = wait_until_still(system, "flood")
            measured.add(DEFAULT, f"flood-{count}", stored)
            measured.add(DEFAULT, f"flood-{count}-rate", rate)
            progress.say(f"flood {count:,} at {rate:,.0f}/s: {DEFAULT} stored {stored:,}")


def _flood(port: int, count: int) -> float:
    spec = {"port": port, "subject": "bench.flood", "in_flight": 0, "count": count}
    return float(run_worker("publisher", {**spec, "payload_bytes": _FLOOD_BYTES})["rate"])


def idle(directory: Path, measured: Measurements, progress: Progress, *, seconds: float) -> None:
    """Measure the CPU time of the daemon and its workers with 100 attached streams and no
    messages."""
    streams = {f"idle-{n:03d}": {"subject": f"bench.idle.{n}"} for n in range(_IDLE_STREAMS)}
    with Liftlog(directory / "idle", streams=streams) as system:
        time.sleep(_SETTLE_SECONDS)  # start-up work is not idling
        before, started = system.daemon.cpu_seconds, time.monotonic()
        time.sleep(seconds)
        used = system.daemon.cpu_seconds - before
        share = used / (time.monotonic() - started)
        measured.add(LIFTLOG, "idle", share * 100)
        measured.add(LIFTLOG, "idle-rss", system.daemon.rss_bytes)
        progress.say(f"idle with {_IDLE_STREAMS} streams: {share:.2%} of a core")
