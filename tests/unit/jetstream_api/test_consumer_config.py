"""JetStream's configuration of a consumer: what is taken, and what is refused."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftlog.server.jetstream_api.answers import JetStreamError
from liftlog.server.jetstream_api.consumers.config import parse_consumer, parse_time

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


def test_a_wildcard_within_a_token_is_a_literal() -> None:
    config = {"ack_policy": "none", "filter_subjects": ["jt.a*", "jt.>b.c"]}
    assert parse_consumer(config, "default").filters == ("jt.a*", "jt.>b.c")


PAGER = {
    "name": "stream_pager_1",
    "durable_name": "stream_pager_1",
    "ack_policy": "explicit",
    "mem_storage": True,
    "inactive_threshold": 3600 * SECOND,
    "pause_until": "0001-01-01T00:00:00Z",
}


def test_the_pager_of_the_command_line_is_taken() -> None:
    spec = parse_consumer(PAGER, "default")
    assert (spec.name, spec.config["ack_policy"]) == ("stream_pager_1", "none")


@pytest.mark.parametrize(
    ("config", "err_code"),
    [
        ({"durable_name": "d"}, 10012),
        ({**PAGER, "mem_storage": False}, 10012),
        ({**PAGER, "inactive_threshold": 0}, 10012),
        ({**PAGER, "durable_name": "pager"}, 10012),
        ({**PAGER, "durable_name": ["stream_pager_"]}, 10012),
        ({"ack_policy": "explicit"}, 10012),
        ({"ack_policy": "all"}, 10012),
        ({"deliver_group": "g"}, 10012),
        ({"replay_policy": "original"}, 10012),
        ({"backoff": [1]}, 10012),
        ({"rate_limit_bps": 1}, 10012),
        ({"pause_until": "2030-01-01T00:00:00Z"}, 10012),
        ({"priority_groups": ["a"]}, 10012),
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
        ({"deliver_subject": "a", "flow_control": True}, 10108),
        ({"idle_heartbeat": SECOND}, 10012),
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
    ]
)


@given(st.dictionaries(NAMES, VALUES))
def test_no_configuration_raises_anything_else(config: dict[str, Any]) -> None:
    with contextlib.suppress(JetStreamError):
        parse_consumer({"ack_policy": "none", **config}, "default")
