"""JetStream's configuration of a consumer: what is taken, and what is refused."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftlog.deliveries.settings import AckPolicy
from liftlog.server.jetstream_api.answers import JetStreamError
from liftlog.server.jetstream_api.consumers.config import parse_consumer, parse_time, shown_config

SECOND = 10**9


def test_an_ordered_consumer_of_a_client_is_taken() -> None:
    spec = parse_consumer(
        {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": 7,
            "ack_policy": "none",
            "ack_wait": 22 * 3600 * SECOND,
            "max_deliver": 1,
            "filter_subject": "orders.*",
            "replay_policy": "instant",
            "flow_control": True,
            "idle_heartbeat": 5 * SECOND,
            "deliver_subject": "_INBOX.a.b",
            "num_replicas": 1,
            "mem_storage": True,
        },
        "default",
    )
    assert (spec.name, spec.start_sequence, spec.filters) == ("default", 7, ("orders.*",))
    assert spec.heartbeat_seconds == 5.0
    assert spec.config["max_deliver"] == 1
    assert spec.config["deliver_subject"] == "_INBOX.a.b"


@pytest.mark.parametrize("more", [{}, {"ack_policy": "explicit"}])
def test_memory_storage_is_shown_only_if_it_was_requested(more: dict[str, Any]) -> None:
    assert "mem_storage" not in parse_consumer({**more, "mem_storage": False}, "default").config
    assert parse_consumer({**more, "mem_storage": True}, "default").config["mem_storage"] is True


def test_a_wildcard_within_a_token_is_a_literal() -> None:
    config = {"ack_policy": "none", "filter_subjects": ["jt.a*", "jt.>b.c"]}
    assert parse_consumer(config, "default").filters == ("jt.a*", "jt.>b.c")


def test_a_worker_of_a_client_is_taken() -> None:
    spec = parse_consumer(
        {
            "durable_name": "d",
            "ack_policy": "explicit",
            "ack_wait": 5 * SECOND,
            "max_deliver": 0,
            "backoff": [SECOND, 2 * SECOND],
            "pause_until": "1970-01-01T00:00:02Z",
        },
        "default",
    )
    assert (spec.name, spec.is_durable, spec.is_kept, spec.inactive_seconds) == ("d", True, True, 0)
    settings = spec.settings
    assert (settings.ack_policy, settings.max_deliver) == (AckPolicy.EXPLICIT, -1)
    assert (settings.ack_wait_ns, settings.backoff_ns) == (SECOND, (SECOND, 2 * SECOND))
    assert (settings.max_ack_pending, settings.pause_until_ns) == (1000, 2 * SECOND)


def test_what_is_shown_means_the_same() -> None:
    """A restart reads it again, and clients send it back to change one field."""
    for more in (
        {},
        {"deliver_subject": "_INBOX.a"},
        {"ack_policy": "none"},
        {"ack_policy": "all"},
        {"priority_policy": "pinned_client", "priority_groups": ["g"], "sample_freq": "50%"},
        {"replay_policy": "original"},
        {"deliver_subject": "_INBOX.a", "rate_limit_bps": 8000},
    ):
        given = {"durable_name": "d", "ack_policy": "explicit", "filter_subject": "a.*", **more}
        spec = parse_consumer(given, "default")
        assert parse_consumer(spec.config, "other") == spec


def test_answers_have_levels_and_comparisons_ignore_them() -> None:
    given = {"durable_name": "d", "ack_policy": "explicit", "metadata": {"a": "b", "_nats.x": "1"}}
    spec = parse_consumer(given, "default")
    config = shown_config(spec)
    levels = {key: config["metadata"].pop(key) for key in ("_nats.level", "_nats.req.level")}
    assert levels == {"_nats.level": "2", "_nats.req.level": "0"}
    assert config["metadata"].pop("_nats.ver")
    assert config["metadata"] == given["metadata"]
    assert parse_consumer(shown_config(spec), "default") == spec
    grouped = {**given, "priority_policy": "overflow", "priority_groups": ["g"]}
    paused = {**given, "pause_until": "2999-01-01T00:00:00Z"}
    for more in (grouped, paused):
        metadata = shown_config(parse_consumer(more, "default"))["metadata"]
        assert metadata["_nats.req.level"] == "1"


@pytest.mark.parametrize(
    ("config", "err_code"),
    [
        ({"durable_name": ["d"]}, 10025),
        ({"durable_name": "d", "name": "e"}, 10132),
        ({"durable_name": "a@b"}, 10103),
        ({"backoff": [0]}, 10025),
        ({"backoff": [1, 2], "max_deliver": 1}, 10116),
        ({"pause_until": "tomorrow"}, 10025),
        ({"max_waiting": 1, "deliver_subject": "a"}, 10080),
        ({"replay_policy": "slow"}, 10025),
        ({"rate_limit_bps": 1}, 10086),
        ({"sample_freq": "x"}, 10095),
        ({"sample_freq": "-5"}, 10095),
        ({"priority_groups": ["a"]}, 10196),
        ({"priority_policy": "overflow"}, 10159),
        ({"priority_policy": "overflow", "priority_groups": "a"}, 10025),
        ({"priority_policy": "overflow", "priority_groups": [""]}, 10161),
        ({"priority_policy": "overflow", "priority_groups": ["a b"]}, 10162),
        ({"priority_policy": "overflow", "priority_groups": ["a"] * 17}, 10012),
        ({"priority_policy": "overflow", "deliver_subject": "a"}, 10178),
        ({"unheard_of": 1}, 10025),
        ({"deliver_policy": "soon"}, 10025),
        ({"deliver_policy": "by_start_sequence"}, 10094),
        ({"opt_start_seq": 1}, 10094),
        ({"deliver_policy": "by_start_time", "opt_start_time": "yesterday"}, 10025),
        ({"name": "a.b"}, 10103),
        ({"deliver_subject": "a.*"}, 10079),
        ({"filter_subject": "a..b"}, 10093),
        ({"deliver_subject": "a..b"}, 10112),
        ({"filter_subject": "a", "filter_subjects": ["b"]}, 10136),
        ({"filter_subjects": ["a", ""]}, 10139),
        ({"filter_subjects": ["a.*", "b", "a.c"]}, 10138),
        ({"filter_subjects": ["a", "a"]}, 10138),
        ({"deliver_subject": "a", "flow_control": True}, 10108),
        ({"idle_heartbeat": SECOND}, 10088),
        ({"flow_control": True}, 10089),
    ],
)
def test_what_is_not_promised_is_refused(config: dict[str, Any], err_code: int) -> None:
    with pytest.raises(JetStreamError) as refusal:
        parse_consumer({"ack_policy": "none", **config}, "default")
    assert refusal.value.err_code == err_code


def test_times_have_nanoseconds_and_zones() -> None:
    assert parse_time("1970-01-01T00:00:01.5Z") == 1_500_000_000
    assert parse_time("1970-01-01T01:00:00.000000001+01:00") == 1
    with pytest.raises(ValueError, match="expected a time"):
        parse_time("2026-01-31")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
NAMES = st.sampled_from(
    [
        "name",
        "durable_name",
        "deliver_subject",
        "deliver_policy",
        "opt_start_time",
        "opt_start_seq",
        "filter_subject",
        "filter_subjects",
        "idle_heartbeat",
        "max_batch",
        "metadata",
        "inactive_threshold",
        "ack_policy",
        "ack_wait",
        "max_deliver",
        "max_ack_pending",
        "max_waiting",
        "backoff",
        "pause_until",
        "priority_groups",
        "priority_policy",
        "priority_timeout",
        "sample_freq",
        "rate_limit_bps",
        "replay_policy",
    ]
)


@given(st.dictionaries(NAMES, VALUES))
def test_no_configuration_raises_anything_else(config: dict[str, Any]) -> None:
    with contextlib.suppress(JetStreamError):
        parse_consumer({"ack_policy": "none", **config}, "default")
