"""A stream that records several subjects: each message once, in the order of its publisher."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from support.clients.ingesting import describe, records_of, until
from support.clients.raw_nats import RawNats, pub_frame
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from acl.subjects import matches_any, overlap_any
from liftlog.client import connect_sync
from liftlog.errors import InvalidArgument

pytestmark = pytest.mark.integration

TOKENS = ("a", "b", "c")
_names = count()


@pytest.fixture(scope="module", params=["parser", "client"])
def daemon(request: pytest.FixtureRequest, server: NatsServer) -> Iterator[Daemon]:
    settings: dict[str, Any] = {
        "name": f"several-{request.param}",
        "nats": {"seam": request.param},
        "streams": {"configured": {"subject": [f"{request.param}.x", f"{request.param}.y.>"]}},
    }
    with Daemon(server.url, settings) as daemon:
        yield daemon


def random_filters(numbers: random.Random, prefix: str) -> list[str]:
    """As many as fit beside each other, of up to six."""
    found: list[str] = []
    for _ in range(6):
        tokens = [numbers.choice((*TOKENS, "*")) for _ in range(numbers.randint(1, 3))]
        wanted = ".".join([prefix, *tokens, *numbers.choice(([], [], [">"]))])
        if not overlap_any((wanted,), found):
            found.append(wanted)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_each_message_is_recorded_once_and_in_order(
    server: NatsServer, daemon: Daemon, seed: int
) -> None:
    numbers = random.Random(seed)
    prefix = f"m{next(_names)}-{seed}"
    streams = {f"{prefix}-{i}": random_filters(numbers, prefix) for i in range(3)}
    with connect_sync(daemon.pull_address) as client:
        for name, filters in streams.items():
            info = client.create_stream(name, subject=filters, acks="off")
            assert info.recorded_subjects == filters
    subjects = [
        ".".join([prefix, *(numbers.choice(TOKENS) for _ in range(numbers.randint(1, 4)))])
        for _ in range(400)
    ]
    with RawNats(server.port) as raw:
        frames = [pub_frame(one, b"%d" % number) for number, one in enumerate(subjects)]
        at = 0
        while at < len(frames):
            size = numbers.choice((1, 7, 100))
            raw.send(b"".join(frames[at : at + size]))
            at += size
        raw.ping()
    for name, filters in streams.items():
        expected = [
            (one, b"%d" % number)
            for number, one in enumerate(subjects)
            if matches_any(filters, one)
        ]
        until(lambda: describe(daemon, name).record_count >= len(expected))  # noqa: B023
        assert [(one.subject, one.value) for one in records_of(daemon, name)] == expected
        with connect_sync(daemon.pull_address) as client:
            client.delete_stream(name)


def test_subjects_of_one_stream_do_not_overlap(daemon: Daemon) -> None:
    with connect_sync(daemon.pull_address) as client:
        with pytest.raises(InvalidArgument, match=r"'o\.>' and 'o\.a' overlap"):
            client.create_stream("overlapping", subject=["o.>", "p", "o.a"])
        with pytest.raises(InvalidArgument, match="1 to 256"):
            client.create_stream("overlapping", subject=[])


def test_subjects_come_and_go_under_load(server: NatsServer, daemon: Daemon) -> None:
    """What is on a subject that stays is recorded once, whatever happens to the others."""
    name = f"changing-{daemon.pull_port}"
    stays, comes, goes = (f"{name}.{one}" for one in ("stays", "comes", "goes"))
    with connect_sync(daemon.pull_address) as client, RawNats(server.port) as raw:
        client.create_stream(name, subject=[stays, goes])
        total = 0
        for subjects in ([stays, comes], [comes, stays], [stays], [goes, stays, f"{name}.a.>"]):
            for _ in range(50):
                raw.pub(stays, b"%d" % total)
                total += 1
            found = client.update_stream(name, {"subject": subjects})
            assert found.info.recorded_subjects == subjects
            assert found.info.state == "attached"
            for one in subjects:
                assert raw.request(one.replace(">", "deep"), b"new").json()["seq"]
        raw.pub(comes, b"too late")
        raw.ping()
        got = [record.value for record in records_of(daemon, name) if record.subject == stays]
        assert [value for value in got if value != b"new"] == [b"%d" % i for i in range(total)]
        assert b"too late" not in [record.value for record in records_of(daemon, name)]
        assert describe(daemon, name).possible_losses == []
        client.delete_stream(name)


def test_streams_are_found_by_each_subject(daemon: Daemon) -> None:
    info = describe(daemon, "configured")
    first, second = info.recorded_subjects
    assert info.subject == f"{first}, {second}"
    with connect_sync(daemon.pull_address) as client:
        for subject in (first, second, second.replace(">", "deep.er")):
            assert [one.name for one in client.streams_for(subject)] == ["configured"]
