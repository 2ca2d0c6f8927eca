"""QUIT shows where a process stands, also one whose event loop is stuck."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from liftlog.server.life.signals import REPEATED_SECONDS

STUCK = """\
import asyncio, sys, time
from liftlog.server.life.signals import Signals

def stand_still():
    print("standing", flush=True)
    sys.stdin.readline()

async def wait_for_ever():
    await asyncio.Event().wait()

async def main():
    stop, dumped = asyncio.Event(), asyncio.Event()
    Signals(stop=stop.set, hurry=lambda: print("hurry", flush=True),
            reload=lambda: print("reload", flush=True),
            reopen_logs=lambda: print("reopen", flush=True)).watch()
    waiting = asyncio.create_task(wait_for_ever(), name="one-that-waits")
    await asyncio.sleep(0)
    stand_still()
    print("moving", flush=True)
    await stop.wait()
    print("stopping", flush=True)
    await asyncio.Event().wait()

LOOP
with asyncio.Runner(loop_factory=factory) as runner:
    runner.run(main())
"""
LOOPS = {
    "uvloop": "import uvloop; factory = uvloop.new_event_loop",
    "asyncio": "factory = asyncio.new_event_loop",
}


def test_a_watchdog_s_abort_leaves_the_stacks() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STUCK.replace("LOOP", LOOPS["uvloop"])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "standing\n"
        process.send_signal(signal.SIGABRT)
        _, stderr = process.communicate(timeout=10)
        assert process.returncode == -signal.SIGABRT
        assert "Fatal Python error: Aborted" in stderr
        assert "in stand_still" in stderr


@pytest.mark.parametrize("loop", LOOPS)
def test_what_each_signal_does(loop: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STUCK.replace("LOOP", LOOPS[loop])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        says = process.stdout.readline
        try:
            assert says() == "standing\n"
            process.send_signal(signal.SIGQUIT)
            stack = ""
            while "in stand_still" not in stack:  # the loop is stuck in it at this moment
                stack += process.stderr.readline()
            assert "most recent call first" in stack
            process.stdin.write("\n")
            process.stdin.flush()
            assert says() == "moving\n"
            tasks = ""
            while "in wait_for_ever" not in tasks:  # now the loop has heard of it too
                tasks += process.stderr.readline()
            assert "Tasks of the event loop: 2" in tasks
            assert "Task one-that-waits" in tasks
            assert "in wait_for_ever" in tasks
            process.send_signal(signal.SIGHUP)
            assert says() == "reload\n"
            process.send_signal(signal.SIGUSR1)
            assert says() == "reopen\n"
            process.send_signal(signal.SIGTERM)
            assert says() == "stopping\n"
            process.send_signal(signal.SIGTERM)  # a repeated one is no hurry, a later one is
            time.sleep(REPEATED_SECONDS + 0.1)
            process.send_signal(signal.SIGTERM)
            assert says() == "hurry\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 128 + signal.SIGINT
        finally:
            process.kill()
