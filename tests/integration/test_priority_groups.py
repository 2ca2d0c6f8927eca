"""Priority groups, resets, samples, rate limits and replays do what JetStream's do.

Each scenario runs on a real JetStream and on the daemon, and what a client sees is compared.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.clients.jetstream_sides import (
    PATIENCE,
    SECOND,
    Sides,
    ack,
    answered,
    asked,
    both_sides,
    consumer,
    fetched,
    figures,
    publish,
    pull,
    shown,
    with_stream,
)
from support.clients.raw_nats import RawMessage, RawNats

pytestmark = pytest.mark.integration

OVERFLOW = {"priority_policy": "overflow", "priority_groups": ["g"]}
PINNED = {"priority_policy": "pinned_client", "priority_groups": ["g"]}
PRIORITIZED = {"priority_policy": "prioritized", "priority_groups": ["g"]}
PIN = re.compile(rb"Nats-Pin-Id: (\S+)")
KINDS = (
    "ADVISORY.CONSUMER.PINNED",
    "ADVISORY.CONSUMER.UNPINNED",
    "ADVISORY.CONSUMER.MSG_TERMINATED",
    "ADVISORY.CONSUMER.MSG_NAKED",
    "METRIC.CONSUMER.ACK",
)
OWN_FIELDS = {"id", "timestamp", "account", "pinned_id", "ack_time"}


@pytest.fixture(scope="module")
def connected() -> Iterator[Sides]:
    with both_sides() as connected:
        yield connected


@pytest.fixture
def sides(connected: Sides) -> Iterator[Sides]:
    with with_stream(connected) as sides:
        yield sides


def pin_of(message: RawMessage) -> str:
    found = PIN.search(message.headers)
    assert found is not None, message
    return found[1].decode()


def groups(raw: RawNats) -> Any:
    """The groups in INFO, without what differs each time."""
    found = asked(raw, "CONSUMER.INFO.s.c", {})["priority_groups"]
    return [{key: key == "group" and value for key, value in one.items()} for one in found]


class Events:
    """The events of the consumer, as a subscriber to all of them sees them."""

    def __init__(self, raw: RawNats) -> None:
        self._raw = RawNats(raw.socket.getpeername()[1], timeout=PATIENCE)
        for kind in KINDS:
            self._raw.sub(f"$JS.EVENT.{kind}.s.c")
        self._raw.ping()
        time.sleep(0.3)  # until the daemon's leaf node connection has the interest

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *error: object) -> None:
        self._raw.__exit__(*error)

    def next(self) -> tuple[bytes, dict[str, Any]]:
        """The next event, without what differs each time."""
        message = self._raw.next_message()
        body = json.loads(message.payload)
        assert body.keys() >= {"id", "timestamp"}
        return message.subject, {key: one for key, one in body.items() if key not in OWN_FIELDS}


Scenario = Callable[[RawNats], Iterator[object]]
SCENARIOS: list[Scenario] = []


def scenario(function: Scenario) -> Scenario:
    SCENARIOS.append(function)
    return function


@scenario
def overflow(raw: RawNats) -> Iterator[object]:
    yield "priority_groups" in consumer(raw, **OVERFLOW), groups(raw)
    publish(raw, 3)
    pull(raw, 1, group="g", min_pending=5)
    assert raw.no_message()
    pull(raw, 1, group="g")
    message = raw.next_message()
    yield shown(message), message.headers, raw.no_message()
    publish(raw, 3)
    yield shown(raw.next_message())
    pull(raw, 5, group="g", min_ack_pending=3)
    assert raw.no_message()
    publish(raw, 1)
    pull(raw, 1, group="g")
    found = [raw.next_message() for _ in range(5)]
    yield [found[0].subject[:2], len(found), figures(raw)["num_ack_pending"]]


@scenario
def pinned(raw: RawNats) -> Iterator[object]:
    consumer(raw, **PINNED)
    publish(raw, 5)
    with Events(raw) as events:
        [message] = fetched(raw, 1, group="g")
        yield shown(message), events.next(), groups(raw)
        pin = pin_of(message)
        pull(raw, 1, group="g")
        assert raw.no_message(), "it has no pin, and waits"
        pull(raw, 1, group="g", id="other")
        yield raw.next_message().headers
        [message] = fetched(raw, 1, group="g", id=pin)
        yield shown(message), pin_of(message) == pin
        yield asked(raw, "CONSUMER.UNPIN.s.c", {"group": "g"}), events.next(), events.next()
        yield shown(raw.next_message())
        pull(raw, 1, group="g", id=pin)
        yield raw.next_message().headers


@scenario
def a_pin_that_times_out(raw: RawNats) -> Iterator[object]:
    consumer(raw, **PINNED, priority_timeout=SECOND)
    publish(raw, 3)
    with Events(raw) as events:
        [message] = fetched(raw, 1, group="g")
        yield events.next(), groups(raw), shown(message)
        yield events.next(), groups(raw)
        [again] = fetched(raw, 1, group="g")
        yield shown(again), pin_of(again) != pin_of(message)


@scenario
def prioritized(raw: RawNats) -> Iterator[object]:
    consumer(raw, **PRIORITIZED)
    replies = [pull(raw, 1, group="g", priority=level) for level in (5, 1, 3)]
    raw.ping()
    time.sleep(0.3)
    publish(raw, 3)
    found = {message.subject: message for message in (raw.next_message() for _ in range(3))}
    yield sorted(one.payload for one in found.values()), len(replies)


@scenario
def refused_pulls(raw: RawNats) -> Iterator[object]:
    consumer(raw, **OVERFLOW)
    for fields in ({}, {"group": "h"}, {"group": "g", "id": "a"}, {"group": "g", "priority": 10}):
        pull(raw, 1, **fields)
        yield raw.next_message().headers
    asked(raw, "CONSUMER.DELETE.s.c", {})
    consumer(raw)
    for fields in ({"min_pending": 1}, {"id": "a"}, {"priority": -1}):
        pull(raw, 1, **fields)
        yield raw.next_message().headers
    asked(raw, "CONSUMER.DELETE.s.c", {})
    consumer(raw, **PINNED)
    publish(raw, 1)
    pull(raw, 1, group="g", id="unknown")
    yield raw.next_message().headers


@scenario
def refused_unpins(raw: RawNats) -> Iterator[object]:
    yield answered(raw, "CONSUMER.UNPIN.s.c", {"group": "g"})["error"]
    consumer(raw, **PINNED)
    for body in ({}, {"group": ""}, {"group": "h"}, {"group": "a b"}):
        yield answered(raw, "CONSUMER.UNPIN.s.c", body)["error"]
    yield answered(raw, "CONSUMER.UNPIN.s.c", {"group": "g"})


@scenario
def reset(raw: RawNats) -> Iterator[object]:
    consumer(raw)
    publish(raw, 6)
    found = fetched(raw, 4)
    ack(raw, found[0])
    ack(raw, found[2])
    yield asked(raw, "CONSUMER.RESET.s.c", {})["reset_seq"], figures(raw)
    yield from map(shown, fetched(raw, 2))
    yield asked(raw, "CONSUMER.RESET.s.c", {"seq": 5})["reset_seq"], figures(raw)
    pull(raw, 5)
    yield shown(raw.next_message()), shown(raw.next_message())
    yield asked(raw, "CONSUMER.RESET.s.c", {"seq": 1})["reset_seq"]
    again = [raw.next_message() for _ in range(3)]
    yield list(map(shown, again))
    yield ack(raw, again[2]), ack(raw, again[0]), figures(raw)
    yield answered(raw, "CONSUMER.RESET.s.c", {"seq": -1})["error"]["err_code"]


@pytest.mark.parametrize(
    ("policy", "sequences"),
    [
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 3}, (2, 5, 3, 0)),
        ({"deliver_policy": "new"}, (2, 0)),
        ({"deliver_policy": "last"}, (2, 0)),
        ({"deliver_policy": "last_per_subject", "filter_subject": "s.>"}, (2, 0)),
        ({"deliver_policy": "all", "ack_policy": "none"}, (2, 0)),
    ],
    ids=lambda one: str(one)[:40],
)
def test_to_where_a_consumer_is_reset(
    sides: Sides, policy: dict[str, Any], sequences: tuple[int, ...]
) -> None:
    seen = []
    for raw in sides:
        publish(raw, 6)
        consumer(raw, **policy)
        seen.append([])
        for sequence in sequences:
            answer = answered(raw, "CONSUMER.RESET.s.c", {"seq": sequence} if sequence else {})
            seen[-1].append((answer.get("error"), answer.get("reset_seq", 0), figures(raw)))
    assert seen[1] == seen[0]


@scenario
def samples(raw: RawNats) -> Iterator[object]:
    consumer(raw, sample_freq="100%")
    publish(raw, 4)
    found = fetched(raw, 4)
    with Events(raw) as events:
        for message, body in zip(found[:3], (b"+ACK", b"+TERM", b"-NAK"), strict=True):
            raw.pub(message.reply, body)
            yield events.next()
        [again] = fetched(raw, 1)
        raw.pub(again.reply, b"+ACK")
        yield events.next()


@scenario
def a_replay(raw: RawNats) -> Iterator[object]:
    publish(raw, 1)
    time.sleep(1)
    publish(raw, 2)
    yield consumer(raw, replay_policy="original")["config"]["replay_policy"]
    pull(raw, 4)
    times = []
    for _ in range(3):
        yield shown(raw.next_message())
        times.append(time.monotonic())
    yield 0.8 < times[1] - times[0] < 5, times[2] - times[1] < 0.5
    publish(raw, 1)
    yield shown(raw.next_message())
    yield answered(
        raw,
        "CONSUMER.CREATE.s.c",
        {
            "stream_name": "s",
            "action": "update",
            "config": {"durable_name": "c", "ack_policy": "explicit"},
        },
    )["error"]


@scenario
def metadata(raw: RawNats) -> Iterator[object]:
    config = consumer(raw, metadata={"a": "b"})["config"]
    yield sorted(config["metadata"]), config["metadata"]["_nats.req.level"]
    body = {"stream_name": "s", "config": config}
    yield "error" in answered(raw, "CONSUMER.DURABLE.CREATE.s.c", body)
    asked(raw, "CONSUMER.DELETE.s.c", {})
    yield consumer(raw, **OVERFLOW)["config"]["metadata"]["_nats.req.level"]


@pytest.mark.parametrize("play", SCENARIOS, ids=lambda one: one.__name__)
def test_a_scenario(sides: Sides, play: Scenario) -> None:
    theirs, ours = [list(play(raw)) for raw in sides]
    assert ours == theirs


def test_a_rate_limit(sides: Sides) -> None:
    """JetStream sends the first MiB at once; the daemon keeps to the limit from the start."""
    raw = sides.ours
    for _ in range(20):
        raw.request("s.a", b"x" * 1000)
    inbox = f"_INBOX.pushed.{secrets.token_hex(4)}"
    raw.sub(inbox)
    raw.ping()
    began = time.monotonic()
    limits = [
        consumer(one, deliver_subject=inbox, rate_limit_bps=80_000)["config"]["rate_limit_bps"]
        for one in sides
    ]
    assert limits == [80_000, 80_000]
    for _ in range(20):
        raw.next_message()
    assert 1 < time.monotonic() - began < 15


CONFIGS: list[dict[str, Any]] = [
    {"priority_groups": ["a"]},
    {"priority_policy": "overflow"},
    {"priority_policy": "overflow", "priority_groups": [""]},
    {"priority_policy": "overflow", "priority_groups": ["a b"]},
    {"priority_policy": "overflow", "priority_groups": ["a" * 17]},
    {"priority_policy": "nonsense", "priority_groups": ["a"]},
    {"priority_policy": "overflow", "priority_groups": ["a"], "deliver_subject": "x.y"},
    {"sample_freq": "x"},
    {"sample_freq": "-5"},
    {"rate_limit_bps": 1000},
    OVERFLOW,
    {**OVERFLOW, "priority_groups": ["a", "b"], "priority_timeout": SECOND},
    PINNED,
    {**PRIORITIZED, "ack_policy": "none"},
    {"sample_freq": "250"},
    {"rate_limit_bps": 1000, "deliver_subject": "x.y"},
]
FIELDS = ("priority_groups", "priority_policy", "priority_timeout", "sample_freq", "rate_limit_bps")


@pytest.mark.parametrize("config", CONFIGS, ids=lambda one: json.dumps(one)[1:70])
def test_a_configuration(sides: Sides, config: dict[str, Any]) -> None:
    """The code decides what clients do; most of them show the words."""
    seen = []
    for raw in sides:
        body = {"stream_name": "s", "config": {"durable_name": "c", "ack_policy": "explicit"}}
        body["config"] |= config
        answer = answered(raw, "CONSUMER.DURABLE.CREATE.s.c", body)
        error = answer.get("error", {})
        fields = answer.get("config", {})
        seen.append(
            ([error.get("code"), error.get("err_code")], [fields.get(one) for one in FIELDS])
        )
    assert seen[1] == seen[0]
