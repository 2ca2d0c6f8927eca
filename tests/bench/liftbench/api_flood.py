"""Measures the acks of a calm publisher while another client floods `$JS.API` with one kind of
request. The flooding client is a process of its own. A flood of a subject without subscribers shows
the influence of NATS and the processor without the daemon. There are no figures to reach."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from support.clients.ingesting import publish, until
from support.clients.raw_nats import RawNats, pub_frame
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from .progress import Progress

_RECORDS, _SUBJECTS = 100_000, 1000
_PAUSE_SECONDS = 0.002

FLOODER = r"""
import itertools, socket, sys, threading
port, subject, payload, waiting = sys.argv[1:]
link = socket.create_connection(("127.0.0.1", int(port)))
link.sendall(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n')
link.sendall(b"SUB _INBOX.flood.* 1\r\n")
free = threading.Semaphore(int(waiting))
def read():
    while data := link.recv(1 << 20):
        if b"PING\r\n" in data:
            link.sendall(b"PONG\r\n")
        for _ in range(data.count(b"MSG _INBOX.flood.")):
            free.release()
threading.Thread(target=read, daemon=True).start()
for number in itertools.count():
    name = subject.replace("#", str(number)).encode()
    body = payload.replace("#", str(number)).encode()
    one = b"PUB %b _INBOX.flood.1 %d\r\n%b\r\n" % (name, len(body), body)
    if int(waiting):
        free.acquire(timeout=1)
    link.sendall(one)
"""

_CONSUMER = {
    "ack_policy": "none",
    "deliver_policy": "last_per_subject",
    "filter_subject": "big.*",
    "inactive_threshold": 10**9,
}


class Flood(NamedTuple):
    name: str
    subject: str
    payload: object = ""


FLOODS = (
    Flood("to no one", "nobody.hears.this"),
    Flood("INFO", "$JS.API.INFO"),
    Flood("STREAM.LIST", "$JS.API.STREAM.LIST"),
    Flood("STREAM.INFO, 1000 subjects", "$JS.API.STREAM.INFO.big", {"subjects_filter": ">"}),
    Flood("STREAM.CREATE", "$JS.API.STREAM.CREATE.n#", {"name": "n#", "subjects": ["n.#"]}),
    Flood("STREAM.MSG.GET, by sequence", "$JS.API.STREAM.MSG.GET.big", {"seq": 5}),
    Flood("STREAM.MSG.GET, a search", "$JS.API.STREAM.MSG.GET.big", {"last_by_subj": "big.*.no"}),
    Flood(
        "CONSUMER.CREATE, last of each",
        "$JS.API.CONSUMER.CREATE.big",
        {"stream_name": "big", "config": _CONSUMER},
    ),
)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="api_flood", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5, help="of each flood (default: 5)")
    parser.add_argument("--only", default="", help="only floods whose names contain this")
    options = parser.parse_args(arguments)
    print("| flood | ack alone, p50 / p99 | 16 requests wait, p50 / p99 | as fast as it can |")
    print("|---|---|---|---|")
    with NatsServer(leafnodes={"listen": "127.0.0.1:-1"}) as server:
        leafnode = re.search(r"for leafnode connections on (\S+)", server.log)
        assert leafnode is not None, server.log
        settings = {
            "nats": {"jetstream_api": True, "leafnode": leafnode[1]},
            "streams": {"calm": {"subject": "calm"}, "big": {"subject": "big.>"}},
        }
        with Daemon(server.url, settings), RawNats(server.port, timeout=60) as calm:
            until(lambda: calm.request("$JS.API.INFO", b"").payload != b"")
            _fill(calm)
            progress = Progress()
            for flood in FLOODS:
                if options.only in flood.name:
                    progress.say(flood.name)
                    _measure(flood, server, calm, options.seconds)
    return 0


def _fill(raw: RawNats) -> None:
    frames = [pub_frame(f"big.{number}", b"x" * 200) for number in range(_SUBJECTS)]
    for _ in range(_RECORDS // _SUBJECTS):
        raw.send(b"".join(frames))
    publish(raw, "big.last", b"x")


def _measure(flood: Flood, server: NatsServer, calm: RawNats, seconds: float) -> None:
    alone = _acks(calm, seconds / 2)
    shown = []
    for waiting in (16, 0):
        payload = flood.payload if isinstance(flood.payload, str) else json.dumps(flood.payload)
        what = [str(server.port), flood.subject, payload, str(waiting)]
        flooder = subprocess.Popen(
            [sys.executable, "-c", FLOODER, *what], stderr=subprocess.DEVNULL
        )
        try:
            time.sleep(0.5)
            shown.append(_shown(_acks(calm, seconds)))
        finally:
            flooder.kill()
            flooder.wait()
        until(lambda: b"account_info" in calm.request("$JS.API.INFO", b"").payload)
    print(f"| {flood.name} | {_shown(alone)} | {' | '.join(shown)} |", flush=True)


def _acks(calm: RawNats, seconds: float) -> list[float]:
    """Milliseconds, sorted."""
    taken = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.perf_counter()
        publish(calm, "calm", b"x")
        taken.append(1000 * (time.perf_counter() - began))
        time.sleep(_PAUSE_SECONDS)
    return sorted(taken)


def _shown(taken: Sequence[float]) -> str:
    return f"{taken[len(taken) // 2]:.1f} / {taken[len(taken) * 99 // 100]:.1f} ms"
