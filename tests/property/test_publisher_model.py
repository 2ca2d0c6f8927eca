"""Whatever the network loses, the reports of a publisher are true, and the requested order is
kept."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.worlds.lossy_network import STREAM, Simulation, Weather

from liftlog.client.publishing.results import (
    NotPublished,
    OrderBroken,
    Published,
    PublishFailed,
    PublishRefused,
    PublishUnknown,
)
from liftlog.client.publishing.send_queue import RetryPolicy, Sequenced, Unordered
from liftlog.records.message_headers import build_block

rare = st.sampled_from([0.0, 0.02, 0.1, 0.4])
weathers = st.builds(
    Weather,
    lose_request=rare,
    lose_answer=rare,
    paused=rare,
    fail_commit=rare,
    absent=rare,
    disconnect=st.sampled_from([0.0, 0.01, 0.05]),
    stall=st.sampled_from([0.0, 0.01, 0.1]),
    foreign_writer=st.just(0.0),
)
LONG = RetryPolicy(50.0)
SHORT = RetryPolicy(2.5)
SEARCHES = settings.default.max_examples // 2  # each is a long story


def payloads(count: int, *, too_large_every: int = 0) -> list[bytes]:
    made = [b"message %06d" % i for i in range(count)]
    if too_large_every:
        made[::too_large_every] = [p + b" " * 2000 for p in made[::too_large_every]]
    return made


def check_reports(simulation: Simulation) -> None:
    stored = simulation.stream.records
    assert len(set(stored)) == len(stored), "stored twice"
    for delivery in simulation.deliveries:
        result, value = delivery.result, delivery.message.value
        assert value is not None
        if isinstance(result, Published):
            assert simulation.stream.offset_of(value) == result.offset
        elif isinstance(result, PublishUnknown):
            assert result.missing in ((), (STREAM,))
        else:  # a certain no
            assert isinstance(result, PublishRefused | NotPublished), result
            assert value not in stored, (result, delivery.attempts)


def own(simulation: Simulation) -> list[bytes]:
    return [value for value in simulation.stream.records if value.startswith(b"message")]


@settings(max_examples=SEARCHES)
@given(weathers, st.integers(0, 2**32), st.sampled_from([SHORT, LONG]), st.booleans())
def test_reports_are_true(weather: Weather, seed: int, retry: RetryPolicy, named: bool) -> None:
    simulation = Simulation(Unordered(retry), weather, seed)
    expect = (STREAM,) if named else ()
    simulation.publish(payloads(40, too_large_every=7), 8, expect)
    check_reports(simulation)


@settings(max_examples=SEARCHES)
@given(weathers, st.integers(0, 2**32), st.sampled_from([SHORT, LONG]), st.booleans())
def test_sequenced_keeps_the_order(
    weather: Weather, seed: int, retry: RetryPolicy, knows_the_start: bool
) -> None:
    broken: list[PublishFailed] = []
    queue = Sequenced(retry, 0 if knows_the_start else None, broken.append)
    simulation = Simulation(queue, weather, seed)
    simulation.publish(payloads(40, too_large_every=7), 8, (STREAM,))
    check_reports(simulation)
    assert own(simulation) == sorted(own(simulation)), "out of order"
    unknown = [d for d in simulation.deliveries if isinstance(d.result, PublishUnknown)]
    assert bool(broken) == bool(unknown)
    if broken:
        first = simulation.deliveries.index(unknown[0])
        behind = simulation.deliveries[first + 1 :]
        assert all(isinstance(d.result, PublishFailed) for d in behind if d.attempts == 0)


@settings(max_examples=SEARCHES)
@given(weathers, st.integers(0, 2**32), st.sampled_from([0.01, 0.1]))
def test_another_writer_is_noticed_and_stops_it(weather: Weather, seed: int, often: float) -> None:
    broken: list[PublishFailed] = []
    queue = Sequenced(LONG, 0, broken.append)
    simulation = Simulation(queue, weather._replace(foreign_writer=often), seed)
    simulation.publish(payloads(30), 8, (STREAM,))
    check_reports(simulation)
    stored = own(simulation)
    assert stored == sorted(stored)
    foreign = [i for i, v in enumerate(simulation.stream.records) if v.startswith(b"foreign")]
    refused = [d.result for d in simulation.deliveries if isinstance(d.result, PublishRefused)]
    if refused:
        assert {failure.err_code for failure in refused} == {10071}
        assert foreign
        assert broken[0] is refused[0] or isinstance(broken[0], PublishUnknown)


@pytest.mark.parametrize("seed", range(5))
def test_without_trouble_each_message_is_sent_once(seed: int) -> None:
    for queue in (Unordered(LONG), Sequenced(LONG, None, print), Sequenced(LONG, 0, print)):
        simulation = Simulation(queue, Weather(), seed)
        simulation.publish(payloads(100), 16, (STREAM,))
        assert simulation.attempts == 100
        assert all(isinstance(d.result, Published) for d in simulation.deliveries)


@pytest.mark.parametrize("seed", range(5))
def test_losses_alone_lose_nothing(seed: int) -> None:
    weather = Weather(lose_request=0.05, lose_answer=0.05)
    for queue in (Unordered(LONG), Sequenced(LONG, 0, print)):
        simulation = Simulation(queue, weather, seed)
        simulation.publish(payloads(100), 16, (STREAM,))
        assert all(isinstance(d.result, Published) for d in simulation.deliveries)
        assert sorted(own(simulation)) == payloads(100)
        assert simulation.attempts < 500


@pytest.mark.parametrize("knows_the_start", [False, True])
def test_what_was_stored_long_ago_does_not_lead_astray(knows_the_start: bool) -> None:
    queue = Sequenced(LONG, 10 if knows_the_start else None, print)
    simulation = Simulation(queue, Weather(), 1)
    for payload in payloads(10):
        simulation.stream.receive(payload, build_block([(b"Nats-Msg-Id", payload)]), 0.0)
    wanted = [*payloads(20)[:3], *payloads(20)[10:]]
    simulation.publish(wanted, 8, (STREAM,))
    offsets = [d.result.offset for d in simulation.deliveries]  # type: ignore[union-attr]
    assert offsets == [1, 2, 3, *range(11, 21)]


def test_a_lost_start_leaves_the_rest_unsent() -> None:
    simulation = Simulation(Sequenced(SHORT, None, print), Weather(lose_request=1.0), 1)
    simulation.publish(payloads(5), 8, (STREAM,))
    kinds = [type(d.result) for d in simulation.deliveries]
    assert kinds == [PublishUnknown] + [OrderBroken] * 4
