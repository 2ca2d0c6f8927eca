"""Streams that are paused or read-only: who is refused, and for how long."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.daemons.administered import acks_of, restarted
from support.daemons.local_broker import Running

from liftlog.errors import (
    Conflict,
    StreamUnavailable,
)
from liftlog.sequencing import MessageRun
from liftlog.server.streams import administration as module
from liftlog.server.streams.administration import Administration


async def nacked(running: Running, name: str = "s") -> bytes:
    """What a publisher is answered now."""
    sent = acks_of(running)
    host = running.broker.hosts[name]
    host.receive(MessageRun([b"in"], [b"_INBOX.1"], [b"v"], has_cookie=False))
    host.kick()
    await host.drained()
    return b"".join(sent)


async def test_a_paused_stream_nacks_until_it_is_resumed(
    running: Running, admin: Administration
) -> None:
    await running.broker.create_stream("s", {"subject": "in"})
    await running.publish("s", b"1")
    info = await admin.pause("s")
    assert info.settings["paused"] is True
    assert b'"code":503' in await nacked(running)
    host = running.broker.hosts["s"]
    assert host.sequencer.refused == {"paused": 1}, "counted, and nothing is swallowed"
    again = await restarted(running)
    assert b'"code":503' in await nacked(again)
    assert (await again.broker.administration.resume("s")).settings["paused"] is False
    assert b'"seq":2' in await nacked(again)
    await again.broker.administration.set_read_only("s", True)
    assert b"read-only" in await nacked(again)
    await again.broker.administration.set_read_only("s", False)
    assert b'"seq":3' in await nacked(again)
    await again.broker.close()


async def test_what_came_before_a_pause_is_committed_when_it_returns(
    running: Running, admin: Administration
) -> None:
    await running.broker.create_stream("s", {"subject": "in"})
    host = running.broker.hosts["s"]
    sent = acks_of(running)
    host.receive(MessageRun([b"in"], [b"_INBOX.1"], [b"v"], has_cookie=False))
    info = await admin.pause("s")
    assert info.high_watermark == 2
    assert b'"seq":1' in b"".join(sent)


async def test_a_pause_whose_disk_stalls_says_so(
    running: Running, admin: Administration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_DRAIN_SECONDS", 0.05)
    await running.broker.create_stream("s", {"subject": "in"})
    await admin.pause("s")
    host = running.broker.hosts["s"]
    host.turns.is_taken = True
    with pytest.raises(StreamUnavailable, match="takes no more messages"):
        await admin.pause("s")
    host.turns.is_taken = False


async def test_creating_a_paused_stream_again_is_still_idempotent(
    running: Running, admin: Administration
) -> None:
    """An application that starts creates its streams; it need not know that one is
    paused."""
    await running.broker.create_stream("s", {"subject": "in"})
    await admin.pause("s")
    info = await running.broker.create_stream("s", {"subject": "in"})
    assert info.settings["paused"] is True
    await admin.resume("s")
    with pytest.raises(Conflict):
        await running.broker.create_stream("s", {"subject": "in", "paused": True})


async def test_a_stream_of_the_file_is_paused_until_the_file_says_otherwise(
    tmp_path: Path,
) -> None:
    running = Running(tmp_path, s={"subject": "in"})
    await running.start()
    await running.broker.administration.pause("s")
    running = await restarted(running, s={"subject": "in", "acks": "on"})
    assert b'"code":503' in await nacked(running)
    # The file was changed to say the same, and then changed back: that is a decision of its own.
    running = await restarted(running, s={"subject": "in", "paused": True})
    running = await restarted(running, s={"subject": "in"})
    assert b'"seq":1' in await nacked(running)
    await running.broker.administration.pause("s")
    await running.broker.administration.resume("s")
    assert running.broker.hosts["s"].overrides == {}
    await running.broker.administration.pause("s")
    running = await restarted(running)  # no longer in the file
    assert b'"code":503' in await nacked(running)
    assert (await running.broker.administration.resume("s")).origin == "api"
    await running.broker.close()
