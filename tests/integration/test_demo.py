"""`liftlog demo` as a newcomer runs it: it succeeds, it can fail, it leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.repository import REPOSITORY

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.client import Client, Record
from liftlog.demo import scenario

pytestmark = pytest.mark.integration


def spawn(directory: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "liftlog", "demo"],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(directory)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = spawn(tmp_path)
    yield process
    if process.poll() is None:
        process.kill()
    process.wait()
    for pipe in (process.stdout, process.stderr):
        assert pipe is not None
        pipe.close()


def processes_in(directory: Path) -> list[str]:
    """Command lines that name `directory`, other than shells that look for it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(directory) in line and path.parent.name != str(os.getpid()):
            found.append(line)
    return found


def without_numbers(text: str) -> str:
    """What is printed at each run, however its lines are filled."""
    return " ".join(re.sub(r"\d[\d,.]*", "#", text).split())


def test_it_succeeds_and_leaves_nothing_behind(demo: subprocess.Popen[str], tmp_path: Path) -> None:
    out, err = demo.communicate(timeout=90)
    assert demo.returncode == 0, out + err
    assert err == ""
    for told in (
        '{"stream":"orders","seq":1}',
        "an envelope.encode()",
        "js.publish()",
        "duplicate=True",
        "10071 wrong last sequence",
        "status -9",
        "still recognises the id",
        "stored exactly once",
    ):
        assert told in out
    acked, unasked = re.findall(r"All ([\d,]+) acked .*? The (\d+) messages", out, re.DOTALL)[0]
    assert int(acked.replace(",", "")) > 2000
    transcript = (REPOSITORY / "README.md").read_text().split("```text\n")[1].split("```")[0]
    for part in transcript.split("...\n"):
        assert without_numbers(part) in without_numbers(out), "README shows another demo"
    assert unasked == "100"
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) < 140
    assert list(tmp_path.iterdir()) == []
    assert processes_in(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_cleans_up(
    demo: subprocess.Popen[str], tmp_path: Path, number: signal.Signals
) -> None:
    assert demo.stdout is not None
    for line in demo.stdout:
        if "kill -9" in line:  # the burst is about to begin
            break
    assert len(processes_in(tmp_path)) == 2
    demo.send_signal(number)
    _, err = demo.communicate(timeout=30)
    assert demo.returncode == ExitCode.INTERRUPTED
    assert err == ""
    assert list(tmp_path.iterdir()) == []
    assert processes_in(tmp_path) == []


def test_its_children_do_not_outlive_it(demo: subprocess.Popen[str], tmp_path: Path) -> None:
    assert demo.stdout is not None
    for line in demo.stdout:
        if "kill -9" in line:
            break
    demo.kill()
    demo.wait()
    deadline = time.monotonic() + 20
    while processes_in(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert processes_in(tmp_path) == []


@pytest.mark.long
def test_a_lost_message_makes_it_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    read = Client.read

    async def lossy(self: Client, *where: Any, **options: Any) -> AsyncIterator[Record]:
        async for record in read(self, *where, **options):
            if record.offset != 3:
                yield record

    monkeypatch.setattr(Client, "read", lossy)
    assert scenario.run_demo(400, keep=False) == ExitCode.FAILED
    out = capsys.readouterr().out
    assert "MISSING  offset 3 ('5 plums') is missing" in out
    assert "FAILED" in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_the_files_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert scenario.run_demo(400, keep=True) == ExitCode.OK
    (kept,) = tmp_path.iterdir()
    assert (kept / "data" / "streams" / "orders" / "manifest").exists()


def test_without_a_nats_server_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(tmp_path)}
    code = (
        "import shutil, sys; from pathlib import Path; from liftlog.server.life import embedded;"
        "sys.executable = '/nonexistent/python'; shutil.which = lambda name: None;"
        "from liftlog.cli.root import cli; cli.main(['demo'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == ExitCode.CONFIG
    assert "liftlog[embedded]" in done.stderr
    assert "Traceback" not in done.stderr
