"""What streams are told of each other."""

from __future__ import annotations

from support.local_broker import Running

from liftlog.stream import MessageRun


async def create(running: Running, name: str, queue_group: str | None = None) -> None:
    group = {} if queue_group is None else {"queue_group": queue_group}
    await running.broker.create_stream(name, {"subject": "in", **group})


async def refused(running: Running, name: str, expected_stream: str) -> bool:
    """Whether a message for `expected_stream` is silently left to it."""
    host = running.broker.hosts[name]
    headers = [f"NATS/1.0\r\nNats-Expected-Stream: {expected_stream}\r\n\r\n".encode()]
    end = host.log.log_end_offset
    host.receive(MessageRun([b"in"], [b""], [b"1"], headers, has_cookie=False))
    host.kick()
    await host.drained()
    return host.log.log_end_offset == end


async def test_a_stream_takes_what_is_for_it_and_leaves_the_rest(running: Running) -> None:
    await create(running, "a")
    await create(running, "b")
    assert [await refused(running, "a", name) for name in "ab"] == [False, True]
    assert [await refused(running, "b", name) for name in "ab"] == [True, False]


async def test_in_a_queue_group_no_other_stream_gets_the_message(running: Running) -> None:
    """So it is refused with an answer, not left to the one that is named."""
    for name, group in (("a", "g"), ("b", "g"), ("c", "h"), ("d", None)):
        await create(running, name, group)
    siblings = {
        name: set(host.sequencer.sibling_streams) - {name.encode()}
        for name, host in running.broker.hosts.items()
    }
    assert siblings == {
        "a": {b"c", b"d"},
        "b": {b"c", b"d"},
        "c": {b"a", b"b", b"d"},
        "d": {b"a", b"b", b"c"},
    }


async def test_a_thousand_streams_share_what_they_know(running: Running) -> None:
    """A map for each of them would cost a second of the event loop, and 80 MB."""
    for name in "abc":
        await create(running, name)
    maps = {id(host.sequencer.sibling_streams) for host in running.broker.hosts.values()}
    assert len(maps) == 1
