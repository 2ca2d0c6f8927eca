"""Compares consumers with acks over NATS with JetStream with file storage, on one machine:
throughput, latency, processor time, memory. Within a round both sides take turns with the same
client; the side that begins changes from round to round. The table shows medians of the rounds."""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from support.clients.client_publishers import worker_programs

from . import acked_pauses as pauses
from . import acked_rows as rows
from .acked_rows import Found, Round
from .acked_sides import sides
from .main import interrupt, scratch_directory
from .progress import Progress

_QUICK = 0.1


class Aim(NamedTuple):
    """One figure of a row, with its limits `must` and `reach`. The figure should not exceed them
    or, if `is_least`, not be below them."""

    name: str
    text: str
    form: str
    must: float | None = None
    reach: float | None = None
    is_least: bool = False


class Row(NamedTuple):
    key: str
    what: str
    measure: Callable[[Round], Found]
    aims: Sequence[Aim]
    is_once: bool = False
    """True if the row takes long, and is measured only in the first round."""

    clients: Sequence[str] = ()
    """Clients of other languages whose workers are needed."""


_ALL_CLIENTS = ("nats.go", "nats.js", "nats.java", "async-nats")
_RATE = Aim("per_second", "messages per second", "{:,.0f}")


def _beside(must: float) -> list[Aim]:
    return [Aim("ratio", "of JetStream's", "{:.2f}x", must, is_least=True), _RATE]


def _pauses(p50: float, p99: float, reach_p50: float, reach_p99: float) -> list[Aim]:
    return [
        Aim("p50_s", "p50", "{:.2f} s", p50, reach_p50),
        Aim("p99_s", "p99", "{:.2f} s", p99, reach_p99),
        Aim("stalls", "stalls of more than 20 s", "{:.0f}", 0, 0),
        Aim("again", "deliveries after a confirmed ack", "{:.0f}", 0, 0),
        Aim("pauses", "pauses measured", "{:.0f}"),
    ]


ROWS = (
    Row(
        "drain",
        "deliver and ack, a worker on a bare socket",
        rows.drained,
        [Aim("us", "processor time of the daemon per message", "{:.1f} us", 12, 6), _RATE],
    ),
    Row("nats-py", "nats-py, fetch(100), ack each", rows.fetched_in_python, _beside(0.9)),
    Row(
        "nats.go",
        "nats.go, Consume, ack each",
        rows.consumed_by("nats.go"),
        _beside(0.5),
        clients=["nats.go"],
    ),
    Row(
        "nats.js",
        "nats.js, consume, ack each",
        rows.consumed_by("nats.js"),
        _beside(0.9),
        clients=["nats.js"],
    ),
    Row(
        "socket",
        "pull socket, batches of 500, each acked and confirmed",
        rows.worked_on_socket,
        [
            Aim("ratio", "of nats.go's Consume on JetStream", "{:.1f}x", 3, 10, is_least=True),
            _RATE,
        ],
        clients=["nats.go"],
    ),
    Row(
        "confirmed",
        "confirmed acks of 64 workers, one in flight each",
        rows.confirmed,
        [
            *_beside(0.5),
            Aim("fdatasync_ms", "median fdatasync of the disk", "{:.2f} ms"),
            Aim("lone_ms", "one worker alone, p50", "{:.2f} ms"),
            Aim("their_lone_ms", "the same with JetStream, without a sync", "{:.2f} ms"),
        ],
    ),
    Row(
        "fetch-one",
        "fetch of one message that is stored, p50",
        rows.fetched_singly,
        [Aim("ms", "liftlog", "{:.2f} ms"), Aim("their_ms", "JetStream", "{:.2f} ms")],
    ),
    Row(
        "waiting",
        "from the ack of the publisher to a waiting pull",
        rows.committed_to_delivered,
        [
            Aim("p50_ms", "p50", "{:.2f} ms", 1, 0.5),
            Aim("p99_ms", "p99", "{:.2f} ms", 3, 2),
        ],
    ),
    Row(
        "create",
        "create and delete a durable consumer, p50",
        rows.created_and_deleted,
        [
            Aim("ratio", "of JetStream's time", "{:.2f}x", 2),
            Aim("ms", "liftlog, synced", "{:.2f} ms"),
            Aim("their_ms", "JetStream", "{:.2f} ms"),
        ],
    ),
    Row(
        "beside",
        "publisher of 1,000/s beside 16 busy consumers, p99 of its acks",
        rows.beside_busy,
        [
            Aim("ratio", "of that without them", "{:.2f}x", 2),
            Aim("alone_ms", "without", "{:.2f} ms"),
            Aim("beside_ms", "beside them", "{:.2f} ms"),
        ],
    ),
    Row(
        "syncs",
        "2,000 plain acks a second, on 200 streams",
        rows.syncs_of_plain_acks,
        [Aim("per_second", "fdatasyncs a second", "{:.1f}", 25)],
        is_once=True,
    ),
    Row(
        "killed",
        "workers after a kill -9 of the daemon: from ready to the next delivery",
        pauses.after_kill,
        _pauses(1, 3, 0.3, 1),
        is_once=True,
        clients=_ALL_CLIENTS,
    ),
    Row(
        "leader",
        "workers after a kill -9 of the leader: time without deliveries",
        pauses.after_leader_kill,
        _pauses(2, 5, 1, 3),
        is_once=True,
        clients=_ALL_CLIENTS,
    ),
    Row(
        "many",
        "processor time of a commit that matches no waiting pull",
        rows.with_many_waiting,
        [
            Aim("consumers", "consumers", "{:,.0f}"),
            Aim("one", "with one filter, of that beside 10 consumers", "{:.2f}x", 1.5),
            Aim("each", "with a filter each, of that beside 10", "{:.2f}x", 3),
            Aim("base_us", "beside 10", "{:.0f} us"),
        ],
        is_once=True,
    ),
    Row(
        "idle",
        "1,000 idle consumers",
        rows.idle,
        [
            Aim("percent", "of a processor", "{:.2f} %"),
            Aim("mib", "memory", "{:.1f} MiB"),
        ],
        is_once=True,
    ),
    Row(
        "pending",
        "1,000,000 pending, all delivered twice, every second acked",
        rows.many_pending,
        [
            Aim("mib", "memory", "{:.0f} MiB", 200),
            Aim("restart_s", "restart, until it delivers", "{:.1f} s", 3),
        ],
        is_once=True,
    ),
)


def measure(options: argparse.Namespace, directory: Path) -> dict[str, list[Found]]:
    progress, chosen = Progress(quiet=options.quiet), _chosen(options.only)
    share = _QUICK if options.quick else 1.0
    programs = worker_programs({one for row in chosen for one in row.clients})
    found: dict[str, list[Found]] = {}
    with sides(directory) as both:
        for number in range(options.rounds):
            order = both if number % 2 == 0 else both[::-1]
            for row in chosen:
                if number and row.is_once:
                    continue
                progress.say(f"round {number + 1}: {row.what}")
                setting = Round(order, share, directory, programs)
                found.setdefault(row.key, []).append(row.measure(setting))
    return found


def show(found: dict[str, list[Found]]) -> bool:
    """Print the table. Returns False if a figure does not meet its must."""
    is_met = True
    print("| | figure | must | reach | measured | rounds |\n|---|---|---|---|---|---|")
    for row in ROWS:
        what = row.what
        for aim in row.aims:
            values = [one[aim.name] for one in found.get(row.key, []) if aim.name in one]
            if not values:
                continue
            value = statistics.median(values)
            misses = _misses(aim, value)
            is_met = is_met and not misses
            spread = f"{aim.form.format(min(values))} to {aim.form.format(max(values))}"
            print(
                f"| {what} | {aim.text} | {_limit(aim, aim.must)} | {_limit(aim, aim.reach)} "
                f"| {aim.form.format(value)}{' **missed**' if misses else ''} "
                f"| {spread if len(values) > 1 else ''} |"
            )
            what = ""
    return is_met


def _misses(aim: Aim, value: float) -> bool:
    if aim.must is None:
        return False
    return value < aim.must if aim.is_least else value > aim.must


def _limit(aim: Aim, limit: float | None) -> str:
    if limit is None:
        return ""
    return ("at least " if aim.is_least else "at most ") + aim.form.format(limit)


def _chosen(only: Sequence[str]) -> list[Row]:
    return [row for row in ROWS if not only or row.key in only]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/bench/consumers.py", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the messages, and one round"
    )
    parser.add_argument(
        "--only", action="append", choices=[row.key for row in ROWS], help="this row; repeatable"
    )
    parser.add_argument("--dir", type=Path, help="where the data go (default: build/)")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds = 1
    return options


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    signal.signal(signal.SIGTERM, interrupt)
    try:
        with scratch_directory(options.dir) as directory:
            found = measure(options, directory)
    except KeyboardInterrupt:
        print("Interrupted; servers stopped, files removed.", file=sys.stderr)
        return 130
    return 0 if show(found) else 1
