"""Clients that send one request at a time, in a process of their own.

For each request they measure the processor time that the daemon uses until the answer arrives.
Other work of the machine hardly affects this time, because a daemon without a processor uses no
processor time.

`python -m support.clients.priced_victims` reads `Victims` as JSON from stdin, prints a line when
all of them are connected, and prints their measurements at the end of stdin.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from support.clients.raw_nats import RawNats
from support.clients.raw_pull import BlockingPull, frame

_PAUSE_SECONDS = 0.005


@dataclass(frozen=True)
class Victims:
    """The victims. `pid` is the process id of the daemon."""

    pid: int
    nats_port: int
    pull_port: int
    http_address: str
    token: str
    stream: str
    subject: str
    page: str

    def as_json(self) -> str:
        return json.dumps(asdict(self))


def processor_seconds(pid: int) -> float:
    """Return the processor time that all threads of a process have used so far, in nanosecond
    resolution."""
    return time.clock_gettime((~pid << 3) | 2)  # as clock_getcpuclockid(3) makes it


class Victim(threading.Thread):
    """Results of one client. `prices` are in seconds of the daemon's processor time, `waits` in
    seconds."""

    def __init__(self, name: str, pid: int, do: Callable[[], None]) -> None:
        super().__init__(name=name, daemon=True)
        self.prices: list[float] = []
        self.waits: list[float] = []
        self.error = ""
        self._pid, self._do = pid, do
        self.leave = threading.Event()

    def run(self) -> None:
        try:
            while not self.leave.wait(_PAUSE_SECONDS):
                before, began = processor_seconds(self._pid), time.monotonic()
                self._do()
                self.prices.append(processor_seconds(self._pid) - before)
                self.waits.append(time.monotonic() - began)
        except Exception as error:
            self.error = repr(error)


def _ack(given: Victims) -> Callable[[], None]:
    nats = RawNats(given.nats_port, timeout=60)

    def do() -> None:
        answer = nats.request(given.subject, b"from the victim").json()
        assert "error" not in answer, answer

    return do


def _stream_info(given: Victims, payload: bytes = b"") -> Callable[[], None]:
    nats = RawNats(given.nats_port, timeout=5)  # as JetStream's clients wait

    def do() -> None:
        answer = nats.request(f"$JS.API.STREAM.INFO.{given.stream}", payload).json()
        assert "error" not in answer, answer

    ready = 0  # a program that was connected before
    while ready < 2:
        with contextlib.suppress(AssertionError, TimeoutError):
            do()
            ready += 1
        time.sleep(0.2)
    return do


def _fetch(given: Victims, **more: object) -> Callable[[], None]:
    pull = BlockingPull(given.pull_port, token=given.token)
    pull.sock.settimeout(60)
    data = frame({"k": "fetch", "i": 1, "s": given.stream, "o": 1, "m": 4096, **more})

    def do() -> None:
        pull.send(data)
        answer = pull.receive()
        assert answer["k"] == "data", answer

    return do


def _get(given: Victims, path: str) -> Callable[[], None]:
    client = http.client.HTTPConnection(given.http_address, timeout=60)
    headers = {"Authorization": f"Bearer {given.token}"}

    def do() -> None:
        client.request("GET", path, headers=headers)
        answer = client.getresponse()
        answer.read()
        assert answer.status == 200, f"{path}: {answer.status}"

    return do


def main(given: Victims) -> None:
    with contextlib.suppress(PermissionError):
        # A victim that gets no processor would also measure the daemon's work after the answer.
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    doing = {
        "ack": _ack(given),
        "fetch": _fetch(given),
        "filtered fetch": _fetch(given, fs=[given.subject]),
        "stream info": _stream_info(given),
        "filtered stream info": _stream_info(given, b'{"subjects_filter": ">"}'),
        "livez": _get(given, "/livez"),
        "page": _get(given, given.page),
    }
    for do in doing.values():
        do()  # one-time work (imports, caches) is not measured
    victims = [Victim(name, given.pid, do) for name, do in doing.items()]
    print("ready", flush=True)
    for victim in victims:
        victim.start()
    sys.stdin.read()
    for victim in victims:
        victim.leave.set()
    for victim in victims:
        victim.join(60)
    found = {
        one.name: {
            "prices": one.prices,
            "waits": one.waits,
            "error": one.error or ("it still waits" if one.is_alive() else ""),
        }
        for one in victims
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(Victims(**json.loads(sys.stdin.readline())))
