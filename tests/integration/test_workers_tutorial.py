"""The tutorial about workers in three languages: its programs are those of docs/examples/workers,
and share one consumer."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.clients.building import Missing, built_with_go, installed_with_npm
from support.clients.command_line import Cli
from support.clients.ingesting import assert_no_traceback, until
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.repository import REPOSITORY

from liftlog.client import connect_sync

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

PAGE = (REPOSITORY / "docs/tutorial/workers.md").read_text()
EXAMPLES = REPOSITORY / "docs/examples/workers"
JOBS = 5


def python(daemon: Daemon, server: NatsServer) -> list[str]:
    return [sys.executable, str(EXAMPLES / "worker.py"), daemon.pull_address]


def go(daemon: Daemon, server: NatsServer) -> list[str]:
    return [str(built_with_go(EXAMPLES / "go", "tutorial-worker")), server.url]


def node(daemon: Daemon, server: NatsServer) -> list[str]:
    place = installed_with_npm(EXAMPLES / "node", "tutorial-worker-node", "worker.js")
    return ["node", str(place / "worker.js"), server.url]


def test_the_page_has_the_programs_of_the_examples() -> None:
    for name, language in (("worker.py", "python"), ("go/main.go", "go"), ("node/worker.js", "js")):
        assert f"```{language}\n{(EXAMPLES / name).read_text()}```" in PAGE, name


def test_the_example_of_the_how_to_page(tmp_path: Path) -> None:
    how_to = (REPOSITORY / "docs/how-to/workers.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", how_to, re.DOTALL)
    streams = {"orders": {"subject": "orders.>"}}
    with NatsServer() as server, Daemon(server.url, {"streams": streams}) as daemon:
        liftlog = Cli(daemon, server)
        liftlog.ok("pub", "orders.a", "one")
        script = tmp_path / "example.py"
        script.write_text(code.replace("tcp://127.0.0.1:9292", daemon.pull_address))
        with subprocess.Popen([sys.executable, "-W", "error", str(script)]) as worker:
            with connect_sync(daemon.pull_address) as client:
                until(lambda: "billing" in [one.name for one in client.list_consumers("orders")])
                until(lambda: client.describe_consumer("orders", "billing").ack_floor == 2)
            assert worker.poll() is None
            worker.kill()
        assert_no_traceback(daemon)


@pytest.mark.parametrize("other", [go, node])
def test_workers_of_two_languages_share_the_jobs(
    other: Callable[[Daemon, NatsServer], list[str]], tmp_path: Path
) -> None:
    create, publish = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    with NatsServer(leafnodes={"listen": "127.0.0.1:-1"}) as server:
        found = re.search(r"Listening for leafnode connections on (\S+:\d+)", server.log)
        assert found is not None, server.log
        nats = {"jetstream_api": True, "leafnode": found[1]}
        with Daemon(server.url, {"nats": nats}) as daemon:
            until(lambda: "jetstream-api-answers" in daemon.log and "leaf-connected" in daemon.log)
            liftlog = Cli(daemon, server)
            for line in create.splitlines():
                liftlog.ok(*line.replace("'", "").split()[1:])
            try:
                commands = [python(daemon, server), other(daemon, server)]
            except Missing as why:
                pytest.skip(str(why))
            workers = [
                subprocess.Popen([*one, str(JOBS)], stdout=subprocess.PIPE, text=True)
                for one in commands
            ]
            assert "jobs.photo" in publish
            for number in range(2 * JOBS):
                liftlog.ok("pub", "jobs.photo", f"photo {number}")
            printed = [one.communicate(timeout=120)[0].splitlines() for one in workers]
            assert [one.returncode for one in workers] == [0, 0]
            assert [len(lines) for lines in printed] == [JOBS, JOBS]
            done = {line.partition(" ")[2] for lines in printed for line in lines}
            assert done == {f"photo {number}" for number in range(2 * JOBS)}
            with connect_sync(daemon.pull_address) as client:
                there = client.describe_consumer("jobs", "resize")
            assert (there.num_ack_pending, there.num_pending) == (0, 0)
            assert_no_traceback(daemon)
