"""A reload validates first and swaps after; what is bad keeps what it had."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from pathlib import Path

import pytest

from liftlog.errors import ConfigError
from liftlog.server.life.reloading import OUTCOME_NAME, Reloads


class File:
    """What a part reads, and what holds."""

    def __init__(self, content: str = "old") -> None:
        self.content = content
        self.holds = content
        self.threads: list[int] = []

    def load(self) -> str:
        self.threads.append(threading.get_ident())
        if self.content == "bad":
            raise ConfigError("acl.file: line 3: unknown key")
        if self.content == "defect":
            raise KeyError("oops")
        return self.content

    def swap(self, content: str) -> None:
        self.threads.append(threading.get_ident())
        self.holds = content


@pytest.fixture
def reloads() -> Reloads:
    return Reloads()


async def test_every_part_is_swapped(reloads: Reloads) -> None:
    acl, tls = File(), File()
    reloads.add("acl", acl.load, acl.swap)
    reloads.add("tls", tls.load, tls.swap)
    acl.content, tls.content = "new acl", "new tls"
    assert await reloads.run()
    assert (acl.holds, tls.holds) == ("new acl", "new tls")
    assert (reloads.succeeded, reloads.failed, reloads.last_succeeded) == (1, 0, True)
    assert acl.threads[0] != threading.get_ident(), "files are not read on the event loop"
    assert acl.threads[1] == threading.get_ident(), "swaps happen on the event loop"


@pytest.mark.parametrize("wrong", ["bad", "defect"])
async def test_a_bad_part_keeps_what_it_had(
    reloads: Reloads, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    acl, tls = File(), File()
    reloads.add("acl", acl.load, acl.swap)
    reloads.add("tls", tls.load, tls.swap)
    acl.content, tls.content = wrong, "new"
    assert not await reloads.run()
    assert (acl.holds, tls.holds) == ("old", "new")
    assert (reloads.succeeded, reloads.failed, reloads.last_succeeded) == (0, 1, False)
    assert set(reloads.problems) == {"acl"}
    assert "reload" in caplog.text
    acl.content = "mended"
    assert await reloads.run()
    assert acl.holds == "mended"
    assert reloads.last_succeeded
    assert reloads.problems == {}


async def test_nothing_is_swapped_before_everything_was_looked_at(reloads: Reloads) -> None:
    """A client that is served during a reload is served by the old files, all of them."""
    first, second = File(), File()
    seen: list[str] = []

    def look() -> str:
        seen.append(first.holds)
        return second.load()

    reloads.add("first", first.load, first.swap)
    reloads.add("second", look, second.swap)
    first.content = "new"
    await reloads.run()
    assert seen == ["old"]
    assert first.holds == "new"


async def test_a_request_during_a_reload_leads_to_another(reloads: Reloads) -> None:
    loading, go_on = threading.Event(), threading.Event()
    loaded: list[int] = []

    def load() -> int:
        loading.set()
        assert go_on.wait(10)
        return len(loaded)

    told: list[str] = []
    second = asyncio.Event()

    def after() -> None:
        told.append("ready")
        if len(told) == 4:
            second.set()

    reloads.add("x", load, loaded.append)
    serving = asyncio.get_running_loop().create_task(
        reloads.serve_requests(before=lambda: told.append("reloading"), after=after)
    )
    reloads.request()
    assert await asyncio.to_thread(loading.wait, 10)
    reloads.request()
    reloads.request()  # these two are one
    go_on.set()
    await asyncio.wait_for(second.wait(), 10)
    await asyncio.sleep(0)
    serving.cancel()
    await asyncio.wait({serving})
    assert told == ["reloading", "ready"] * 2
    assert loaded == [0, 1]


async def test_a_reload_that_is_cut_off_swaps_nothing(reloads: Reloads) -> None:
    loading, go_on = threading.Event(), threading.Event()
    acl = File()

    def load() -> str:
        loading.set()
        assert go_on.wait(10)
        return "new"

    reloads.add("acl", load, acl.swap)
    told: list[str] = []
    serving = asyncio.get_running_loop().create_task(
        reloads.serve_requests(lambda: None, lambda: told.append("ready"))
    )
    reloads.request()
    assert await asyncio.to_thread(loading.wait, 10)
    serving.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert (acl.holds, told, reloads.succeeded) == ("old", [], 0)


async def test_the_outcome_is_told_in_the_data_directory(reloads: Reloads, tmp_path: Path) -> None:
    path = tmp_path / OUTCOME_NAME
    path.write_text("of an earlier process")
    reloads.tell_in(tmp_path)
    assert not path.exists()
    acl = File()
    reloads.add("acl", acl.load, acl.swap)
    before = time.monotonic_ns()
    assert await reloads.run()
    told = json.loads(path.read_text())
    assert before <= told.pop("began_ns") <= time.monotonic_ns()
    assert told == {"pid": os.getpid(), "reloaded": ["acl"], "problems": {}, "restart_needed": []}
    acl.content = "bad"
    await reloads.run()
    told = json.loads(path.read_text())
    assert (told["reloaded"], list(told["problems"])) == ([], ["acl"])
    reloads.close()
    assert list(tmp_path.iterdir()) == []


async def test_an_outcome_that_cannot_be_told_changes_nothing(
    reloads: Reloads, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reloads.tell_in(tmp_path / "gone")
    acl = File()
    reloads.add("acl", acl.load, acl.swap)
    assert await reloads.run()
    assert "reload-not-told" in caplog.text
    reloads.close()
