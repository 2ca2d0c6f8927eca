"""Consumers with acks do what JetStream's do: the same deliveries, counts, statuses and figures.

Each scenario runs on a real JetStream and on the daemon, and what the worker sees is compared.
"""

from __future__ import annotations

import itertools
import json
import secrets
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from support.clients.ingesting import until
from support.clients.jetstream_sides import (
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
from support.clients.raw_nats import RawNats

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def connected() -> Iterator[Sides]:
    with both_sides() as connected:
        yield connected


@pytest.fixture
def sides(connected: Sides) -> Iterator[Sides]:
    with with_stream(connected) as sides:
        yield sides


Scenario = Callable[[RawNats], Iterator[object]]
SCENARIOS: list[Scenario] = []


def scenario(function: Scenario) -> Scenario:
    SCENARIOS.append(function)
    return function


@scenario
def acks_move_the_floor(raw: RawNats) -> Iterator[object]:
    consumer(raw)
    publish(raw, 5)
    found = fetched(raw, 4)
    yield from map(shown, found)
    for place in (2, 0, 1):
        yield ack(raw, found[place])
        yield figures(raw)


@scenario
def info_shows_when_the_last_delivery_and_ack_were(raw: RawNats) -> Iterator[object]:
    def have_times() -> list[bool]:
        info = asked(raw, "CONSUMER.INFO.s.c", {})
        return ["last_active" in info[name] for name in ("delivered", "ack_floor")]

    consumer(raw)
    publish(raw, 2)
    yield have_times()
    found = fetched(raw, 2)
    yield have_times()
    ack(raw, found[0], b"-NAK")
    yield have_times()
    ack(raw, found[1])
    yield have_times()


@scenario
def naks_and_terms(raw: RawNats) -> Iterator[object]:
    consumer(raw)
    publish(raw, 4)
    found = fetched(raw, 4)
    yield ack(raw, found[1], b"-NAK"), ack(raw, found[3], b"-NAK"), ack(raw, found[0], b"+TERM bad")
    again = fetched(raw, 2)
    yield from map(shown, again)
    yield figures(raw)
    for message in again:
        yield ack(raw, message)
    yield ack(raw, found[2], b"+OK")
    yield figures(raw)


@scenario
def a_delayed_nak(raw: RawNats) -> Iterator[object]:
    consumer(raw)
    publish(raw, 2)
    found = fetched(raw, 2)
    began = time.monotonic()
    ack(raw, found[0], b'-NAK {"delay": 700000000}')
    ack(raw, found[1], b"-NAK")
    yield from map(shown, fetched(raw, 2))
    yield 0.6 < time.monotonic() - began < 5


@scenario
def a_missing_ack(raw: RawNats) -> Iterator[object]:
    consumer(raw, ack_wait=SECOND // 2, max_deliver=3)
    publish(raw, 2)
    yield from map(shown, fetched(raw, 6))
    time.sleep(1)
    yield {name: figures(raw)[name] for name in ("delivered", "num_redelivered", "num_pending")}


@scenario
def work_in_progress(raw: RawNats) -> Iterator[object]:
    consumer(raw, ack_wait=2 * SECOND)
    publish(raw, 1)
    [found] = fetched(raw, 1)
    began = time.monotonic()
    for _ in range(3):
        time.sleep(1)
        ack(raw, found, b"+WPI")
    yield shown(*fetched(raw, 1))
    yield time.monotonic() - began > 4.5


@scenario
def backoff(raw: RawNats) -> Iterator[object]:
    consumer(raw, backoff=[SECOND // 2, 2 * SECOND], max_deliver=3)
    publish(raw, 1)
    times = []
    for message in (fetched(raw, 1)[0] for _ in range(3)):
        times.append(time.monotonic())
        yield shown(message)
    first, second = [after - before for before, after in itertools.pairwise(times)]
    yield first > 0.4, 1.5 < second < 10


@scenario
def no_more_than_may_be_pending(raw: RawNats) -> Iterator[object]:
    consumer(raw, max_ack_pending=2)
    publish(raw, 4)
    found = fetched(raw, 2)
    yield list(map(shown, found)), figures(raw)
    waiting = pull(raw, 2)
    assert raw.no_message()
    ack(raw, found[0])
    yield shown(raw.next_message())
    ack(raw, found[1], b"-NAK")
    yield shown(raw.next_message()), bool(waiting)
    yield figures(raw)


@scenario
def next_with_the_ack(raw: RawNats) -> Iterator[object]:
    consumer(raw)
    publish(raw, 3)
    [found] = fetched(raw, 1)
    reply = raw.new_reply()
    raw.pub(found.reply, b'+NXT {"batch": 2, "no_wait": true}', reply=reply)
    yield shown(raw.next_message()), shown(raw.next_message())
    yield figures(raw)


@scenario
def all_below(raw: RawNats) -> Iterator[object]:
    consumer(raw, ack_policy="all")
    publish(raw, 5)
    found = fetched(raw, 4)
    yield ack(raw, found[2]), figures(raw)
    yield ack(raw, found[0]), figures(raw)
    ack(raw, found[3], b"-NAK")
    yield shown(*fetched(raw, 1))


@scenario
def filters(raw: RawNats) -> Iterator[object]:
    publish(raw, 9)
    yield consumer(raw, filter_subjects=["s.1", "s.2"])["num_pending"]
    found = fetched(raw, 4)
    yield list(map(shown, found)), figures(raw)
    for message in found:
        ack(raw, message)
    yield figures(raw)


def has_pending(raw: RawNats, count: int) -> bool:
    return bool(figures(raw)["num_pending"] == count)


@pytest.mark.parametrize(
    "policy",
    [
        {"deliver_policy": "new"},
        {"deliver_policy": "last"},
        {"deliver_policy": "last_per_subject", "filter_subject": "s.>"},
        {"deliver_policy": "by_start_sequence", "opt_start_seq": 4},
    ],
    ids=lambda one: str(one["deliver_policy"]),
)
def test_where_it_begins(sides: Sides, policy: dict[str, Any]) -> None:
    seen = []
    for raw in sides:
        publish(raw, 7)
        consumer(raw, **policy)
        before = figures(raw)
        publish(raw, 1)
        # JetStream counts a message after its ack.
        until(partial(has_pending, raw, before["num_pending"] + 1))
        first = pull(raw, 9, no_wait=True)
        found = []
        while not found or found[-1].reply:
            found.append(raw.next_message())
        seen.append([*map(shown, found), before, bool(first)])
    assert seen[1] == seen[0]


@scenario
def statuses(raw: RawNats) -> Iterator[object]:
    consumer(raw, max_waiting=1, max_batch=5, max_expires=30 * SECOND)
    pull(raw, 6)
    yield shown(raw.next_message())
    pull(raw, 1, expires=60 * SECOND)
    yield shown(raw.next_message())
    pull(raw, 1, no_wait=True, expires=0)
    yield shown(raw.next_message())
    pull(raw, 2, expires=SECOND // 2)
    pull(raw, 2)
    yield shown(raw.next_message()), shown(raw.next_message())


@scenario
def deletion_ends_pulls(raw: RawNats) -> Iterator[object]:
    consumer(raw)
    pull(raw, 2)
    raw.ping()
    time.sleep(0.2)
    yield asked(raw, "CONSUMER.DELETE.s.c", {})["success"]
    yield shown(raw.next_message())
    yield answered(raw, "CONSUMER.INFO.s.c", {})["error"]


@scenario
def pause(raw: RawNats) -> Iterator[object]:
    consumer(raw)
    publish(raw, 1)
    yield asked(raw, "CONSUMER.PAUSE.s.c", {"pause_until": "2999-01-01T00:00:00Z"})["paused"]
    reply = pull(raw, 1)
    time.sleep(0.3)
    yield raw.no_message()
    yield asked(raw, "CONSUMER.PAUSE.s.c", {})["paused"], bool(reply)


@scenario
def created_again(raw: RawNats) -> Iterator[object]:
    """An ephemeral consumer without a threshold is never the same as the one that is there."""
    for config in (
        {"name": "durable", "durable_name": "durable"},
        {"name": "lasting", "inactive_threshold": 60 * SECOND},
        {"name": "short"},
        {"name": "short", "num_replicas": 1},
    ):
        body = {"stream_name": "s", "config": {"ack_policy": "explicit", **config}}
        for action in ("create", "create", "update", ""):
            found = answered(raw, f"CONSUMER.CREATE.s.{config['name']}", {**body, "action": action})
            yield action, found.get("error"), found.get("config", {}).get("num_replicas")


@scenario
def pushes(raw: RawNats) -> Iterator[object]:
    publish(raw, 3)
    inbox = f"_INBOX.pushed.{secrets.token_hex(4)}"
    raw.sub(inbox)
    raw.ping()
    consumer(raw, deliver_subject=inbox, ack_wait=SECOND)
    found = [raw.next_message() for _ in range(3)]
    yield from map(shown, found)
    ack(raw, found[0])
    ack(raw, found[1], b"-NAK")
    yield shown(raw.next_message())
    ack(raw, found[1])
    yield shown(raw.next_message())
    yield asked(raw, "CONSUMER.INFO.s.c", {})["push_bound"]


@pytest.mark.parametrize("play", SCENARIOS, ids=lambda one: one.__name__)
def test_a_scenario(sides: Sides, play: Scenario) -> None:
    theirs, ours = [list(play(raw)) for raw in sides]
    assert ours == theirs


CONFIGS: list[dict[str, Any]] = [
    {"durable_name": "d"},
    {"ack_policy": "explicit", "backoff": [SECOND, SECOND], "max_deliver": 1},
    {"ack_policy": "explicit", "max_waiting": 5, "deliver_subject": "_INBOX.a.b"},
    {"ack_policy": "explicit", "idle_heartbeat": SECOND},
    {"ack_policy": "explicit", "flow_control": True},
    {"ack_policy": "explicit", "flow_control": True, "deliver_subject": "_INBOX.a.b"},
    {"ack_policy": "explicit", "idle_heartbeat": 1, "deliver_subject": "_INBOX.a.b"},
    {"ack_policy": "explicit", "deliver_policy": "by_start_sequence"},
    {"ack_policy": "explicit", "filter_subject": "s.a", "filter_subjects": ["s.b"]},
    {"ack_policy": "explicit", "filter_subjects": ["s.a", ""]},
    {"ack_policy": "explicit", "filter_subjects": ["s.a", "s.*"]},
    {"ack_policy": "explicit", "max_expires": 10},
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda one: json.dumps(one)[1:60])
def test_what_is_refused(sides: Sides, config: dict[str, Any]) -> None:
    """The code decides what clients do; most of them show the words."""
    seen = []
    for raw in sides:
        body = {"stream_name": "s", "config": {"durable_name": "c", **config}}
        answer = answered(raw, "CONSUMER.DURABLE.CREATE.s.c", body)
        seen.append({key: answer["error"][key] for key in ("code", "err_code")})
    assert seen[1] == seen[0]


UPDATES: list[dict[str, Any]] = [
    {"ack_wait": 5 * SECOND},
    {"max_ack_pending": 7},
    {"max_deliver": 4},
    {"filter_subject": "s.1"},
    {"description": "other"},
    {"ack_policy": "all"},
    {"deliver_policy": "new"},
    {"deliver_subject": "_INBOX.a.b"},
    {"max_waiting": 3},
]


@pytest.mark.parametrize("change", UPDATES, ids=lambda one: json.dumps(one)[1:40])
def test_what_may_be_updated(sides: Sides, change: dict[str, Any]) -> None:
    seen = []
    for raw in sides:
        consumer(raw)
        config = {"durable_name": "c", "ack_policy": "explicit", **change}
        body = {"stream_name": "s", "config": config, "action": "update"}
        answer = answered(raw, "CONSUMER.CREATE.s.c", body)
        (key,) = change
        shown_config = answered(raw, "CONSUMER.INFO.s.c", {})["config"]
        seen.append((answer.get("error", {}).get("err_code"), shown_config.get(key)))
    assert seen[1] == seen[0]
