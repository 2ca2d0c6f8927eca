"""The first tutorial, word for word: each block in its order, in a directory of its own."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support.clients.ingesting import until
from support.pages import blocks, run_shell, tools_in

from liftlog.client import GroupInfo, connect_sync
from liftlog.server.vitals.child_processes import tied_to_parent
from liftlog.settings import Settings

pytestmark = pytest.mark.integration

PAGE = "tutorial/first-stream.md"
FREE_PORTS = ["--set", "pull.listen=[tcp://127.0.0.1:0]", "--set", "http.listen=127.0.0.1:0"]


@contextmanager
def first_terminal(command: str, directory: Path) -> Iterator[tuple[subprocess.Popen[bytes], dict]]:
    """The daemon as the page starts it, but for its ports; what the second terminal has to know."""
    program, *arguments = shlex.split(command)
    given = [one.partition("data_dir=")[2] for one in arguments if "data_dir=" in one]
    addresses = directory / (given or [Settings().data_dir])[0] / "addresses.json"
    addresses.unlink(missing_ok=True)
    tools = tools_in(directory)
    said = directory / "said"
    with said.open("wb") as stderr:
        process = subprocess.Popen(
            tied_to_parent([str(tools / program), *arguments, *FREE_PORTS]),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
    try:
        until(lambda: addresses.exists() or process.poll() is not None, 60)
        until(lambda: "nats-connected" in said.read_text(), 60)
        [nats_url] = re.findall(r'"embedded-nats", "url": "([^"]+)"', said.read_text())
        server = json.loads(addresses.read_text())["pull"][0]
        yield process, {"NATS_URL": nats_url, "LIFTLOG_SERVER": server}
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def values(printed: str) -> list[str]:
    """The last column of what `consume` prints, without the title."""
    return re.findall(r"orders\.\w+ +(\w+ order)$", printed, re.MULTILINE)


def test_the_short_start_of_the_readme(tmp_path: Path) -> None:
    publish_and_read, _ = blocks("../README.md", "")
    [install_and_serve] = blocks("../README.md", "sh")
    serve = install_and_serve.splitlines()[-1]
    [program] = blocks("../README.md", "python")
    with first_terminal(serve, tmp_path) as (_, given):
        # The second command would wait for more.
        printed = run_shell(publish_and_read.rstrip() + " -n 1\n", tmp_path, given)
        assert printed.splitlines()[0] == "orders 1"
        assert printed.rstrip().endswith("first order")
        (tmp_path / "read.py").write_text(
            program.replace("tcp://127.0.0.1:9292", given["LIFTLOG_SERVER"])
        )
        assert run_shell("python read.py", tmp_path, given) == "1 orders.new b'first order'\n"


def test_every_step(tmp_path: Path) -> None:
    install, serve, second, kill, serve_again = blocks(PAGE, "")
    assert install.splitlines()[0] == "python3 -m venv liftlog-env"
    assert second.splitlines()[0] in install
    assert serve_again == serve
    create, publish, read_all, read_some, remember, look_again = blocks(PAGE, "sh")
    created, acked, shown, remembered = blocks(PAGE, "text")
    publisher, consumer = blocks(PAGE, "python")

    with first_terminal(serve, tmp_path) as (daemon, given):
        pattern = kill.removeprefix("pkill -9 -f ").strip()
        assert pattern in Path(f"/proc/{daemon.pid}/cmdline").read_text().replace("\0", " ")
        assert run_shell(create, tmp_path, given) == created
        assert run_shell(publish, tmp_path, given) == acked
        (tmp_path / "publish.py").write_text(publisher)
        assert run_shell("python publish.py", tmp_path, given) == "orders 3\n"
        printed = run_shell(read_all, tmp_path, given)
        assert printed.splitlines()[0].split() == shown.splitlines()[0].split()
        assert values(printed) == values(shown) == ["first order", "second order", "third order"]
        assert values(run_shell(read_some, tmp_path, given)) == [
            "second order",
            "third order",
            "second order",
        ]
        (tmp_path / "consumer.py").write_text(
            consumer.replace("tcp://127.0.0.1:9292", given["LIFTLOG_SERVER"])
        )
        printed = run_shell(remember, tmp_path, given)
        assert printed.startswith(remembered)
        assert re.search(r"^billing +orders +5 +0 ", printed, re.MULTILINE)
        os.kill(daemon.pid, signal.SIGKILL)
        assert daemon.wait(30) == -signal.SIGKILL

    with first_terminal(serve_again, tmp_path) as (daemon, given):
        printed = run_shell(look_again, tmp_path, given)
        assert values(printed) == ["first order", "second order", "third order", "fourth order"]
        assert "possible losses   at offset 5" in printed
        daemon.send_signal(signal.SIGINT)
        assert daemon.wait(30) == 0


WORKERS = "tutorial/ten-workers.md"


def shares(shown: str) -> dict[str, int]:
    """Members and their slots, as `group info` prints them."""
    return {name: int(slots) for name, slots in re.findall(r"^(w\d+) +(\d+) ", shown, re.MULTILINE)}


@pytest.mark.long
def test_ten_workers(tmp_path: Path) -> None:
    serve, _ = blocks(WORKERS, "")
    create, start, info, publish, whose, count, kill, info_again, count_again, stop = blocks(
        WORKERS, "sh"
    )
    [worker] = blocks(WORKERS, "python")
    ten, of_one, all_of_them, nine, all_in_the_end = blocks(WORKERS, "text")
    with (
        first_terminal(serve, tmp_path) as (_, given),
        connect_sync(given["LIFTLOG_SERVER"]) as client,
    ):

        def shell(script: str) -> str:
            return run_shell(script, tmp_path, given)

        def group() -> GroupInfo:
            return client.describe_group("billing", "orders") or GroupInfo()

        def sizes() -> list[int]:
            return sorted([one["slots"] for one in group().members])

        shell(create)
        address = given["LIFTLOG_SERVER"]
        (tmp_path / "worker.py").write_text(worker.replace("tcp://127.0.0.1:9292", address))
        try:
            shell(start)
            until(lambda: sizes() == sorted(shares(ten).values()), 120, "ten share")
            until(lambda: shares(shell(info)).keys() == shares(ten).keys(), 120, "all are there")
            shell(publish)
            until(lambda: shell(count) == all_of_them, 120, "all is done")
            printed = re.sub(r"w\d+.txt", "w4.txt", shell(whose)).splitlines()
            assert sorted(set(printed)) == of_one.splitlines()
            # Twice, or by two of them, only where the machine held one up for a session.
            if "group-members-expired" not in (tmp_path / "said").read_text():
                assert printed == of_one.splitlines()
            shell(kill)
            until(lambda: sizes() == sorted(shares(nine).values()), 120, "nine share")
            until(lambda: shares(shell(info_again)).keys() == shares(nine).keys(), 120, "nine")
            until(lambda: shell(count_again) == all_in_the_end, 120, "the rest is done")
            # A slot without new records hears how far the stream is within a second.
            until(lambda: group().lag == 0, 120, "all is committed")
            shell(stop)
            until(lambda: group().members == [], 120, "they have ended")
            assert group().lag == 0
        finally:
            for file in tmp_path.glob("w*.pid"):
                with suppress(ProcessLookupError):
                    os.kill(int(file.read_text()), signal.SIGKILL)
