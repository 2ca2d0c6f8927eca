"""JetStream's configuration of a stream against our settings."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftlog.server.jetstream_api.answers import JetStreamError
from liftlog.server.jetstream_api.stream_config import (
    changes_from,
    check_unchangeable,
    config_of,
    settings_from,
)
from liftlog.server.streams.settings import merged_settings
from liftlog.settings import StreamSettings, parse_stream_settings

SECOND = 10**9


def wanted(**fields: Any) -> dict[str, Any]:
    return {"name": "orders", **fields}


def settings_of(**fields: Any) -> StreamSettings:
    return parse_stream_settings(settings_from("orders", wanted(**fields)))


def refused(**fields: Any) -> JetStreamError:
    with pytest.raises(JetStreamError) as refusal:
        settings_from("orders", wanted(**fields))
    return refusal.value


@pytest.mark.parametrize(
    "empty",
    [
        {"placement": {}},
        {"placement": {"cluster": "", "tags": []}},
        {"placement": {"cluster": "", "tags": None, "preferred": ""}},
        {"consumer_limits": {"inactive_threshold": 0, "max_ack_pending": 0}},
        {"republish": {"src": "", "dest": "", "headers_only": False}},
        {"mirror": None, "sources": [], "subject_transform": {}},
    ],
)
def test_what_says_nothing_is_not_refused(empty: dict[str, Any]) -> None:
    """Go programs, such as natscli's `object add`, send objects without a value in them."""
    assert settings_of(**empty) == settings_of()


def test_an_object_store() -> None:
    config = {
        "name": "OBJ_files",
        "subjects": ["$O.files.C.>", "$O.files.M.>"],
        "discard": "new",
        "allow_rollup_hdrs": True,
        "allow_direct": True,
        "placement": {},
    }
    settings = parse_stream_settings(settings_from("OBJ_files", config))
    assert settings.jetstream is not None
    assert settings.jetstream.allow_rollup_hdrs
    assert config_of("OBJ_files", settings)["allow_rollup_hdrs"] is True
    with pytest.raises(JetStreamError, match="only with acks"):
        settings_from("OBJ_files", config | {"no_ack": True})
    with pytest.raises(JetStreamError, match="in a cluster") as why:
        settings_from("OBJ_files", config | {"num_replicas": 3})
    assert why.value.err_code == 10052


def limits(least: int) -> st.SearchStrategy[int]:
    return st.sampled_from([-1]) | st.integers(least, 2**40)


CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "subjects": st.sampled_from([["a"], ["a.>"], ["a.*.b"], ["x", "y.z.>", "x.a"]]),
        "description": st.text(max_size=40).filter(lambda text: text.isprintable()),
        "metadata": st.dictionaries(
            st.text(st.characters(codec="utf-8"), min_size=1, max_size=9),
            st.text(st.characters(codec="utf-8"), max_size=9),
            max_size=3,
        ),
        "max_msgs": limits(1),
        "max_bytes": limits(1),
        "max_age": st.integers(1, 10**6).map(lambda count: count * SECOND // 10),
        "max_msg_size": st.sampled_from([-1]) | st.integers(1, 2**26 - 1),
        "max_consumers": st.sampled_from([-1]) | st.integers(1, 1000),
        "no_ack": st.booleans(),
        "deny_delete": st.booleans(),
        "deny_purge": st.booleans(),
        "allow_direct": st.booleans(),
        "sealed": st.booleans(),
        "first_seq": st.integers(2, 2**40),
    },
)


@given(CONFIGS)
def test_what_is_asked_for_is_what_is_shown(fields: dict[str, Any]) -> None:
    shown = config_of("orders", settings_of(**fields))
    absent = {"no_ack": False, "description": "", "metadata": {}, "subjects": ["orders"]}
    for key, value in fields.items():
        assert shown.get(key, absent.get(key)) == value, key
    assert json.loads(json.dumps(shown)) == shown


@given(CONFIGS)
def test_what_is_shown_can_be_asked_for_again(fields: dict[str, Any]) -> None:
    shown = config_of("orders", settings_of(**fields))
    again = parse_stream_settings(settings_from("orders", shown))
    assert config_of("orders", again) == shown


@given(CONFIGS, CONFIGS)
def test_an_update_leads_to_what_was_asked_for(one: dict[str, Any], other: dict[str, Any]) -> None:
    same = {key: one[key] for key in ("first_seq",) if key in one}
    other = {key: value for key, value in other.items() if key not in same and key != "first_seq"}
    before, after = settings_of(**one), settings_of(**{**other, **same})
    have, want = config_of("orders", before), config_of("orders", after)
    if have["sealed"] and not want["sealed"]:
        with pytest.raises(JetStreamError, match="unseal"):
            check_unchangeable(have, want)
        return
    if any(have[name] and not want[name] for name in ("deny_delete", "deny_purge")):
        with pytest.raises(JetStreamError, match="can not cancel deny"):
            check_unchangeable(have, want)
        return
    check_unchangeable(have, want)
    asked = settings_from("orders", wanted(**{**other, **same}))
    reached = merged_settings(before, changes_from(asked, have, want))
    assert config_of("orders", reached) == want


def test_an_update_leaves_alone_what_jetstream_does_not_know() -> None:
    ours = {
        "subject": "orders",
        "acks": "envelope",
        "compression": "zstd",
        "durability": "interval",
        "max_message_bytes": 64 * 2**20,
    }
    before = parse_stream_settings(ours)
    have = config_of("orders", before)
    asked = settings_from("orders", {**have, "max_age": 600 * SECOND})
    want = config_of("orders", parse_stream_settings(asked))
    reached = merged_settings(before, changes_from(asked, have, want))
    assert reached.retention.max_age_seconds == 600
    assert (reached.acks, reached.compression) == ("envelope", "zstd")
    assert reached.durability == "interval"


def test_an_update_with_a_longer_history_always_has_compaction_off() -> None:
    """What the update was compared with may be out of date: a history of 1 with compaction."""
    bucket = {"subjects": ["$KV.b.>"], "max_msgs_per_subject": 5}
    have = config_of("orders", settings_of(**bucket))
    asked = settings_from("orders", wanted(**bucket, description="hello"))
    want = config_of("orders", parse_stream_settings(asked))
    now = settings_of(**bucket | {"max_msgs_per_subject": 1})
    assert now.compaction is not None
    reached = merged_settings(now, changes_from(asked, have, want))
    assert (config_of("orders", reached), reached.compaction) == (want, None)


@pytest.mark.parametrize("compaction", [None, {"enabled": True, "min_lag": "1h"}])
def test_an_update_of_a_bucket_leaves_its_compaction_alone(compaction: Any) -> None:
    ours = {"subject": "orders", "compaction": compaction, "jetstream": {"max_msgs_per_subject": 1}}
    before = parse_stream_settings(ours)
    have = config_of("orders", before)
    asked = settings_from("orders", {**have, "description": "hello"})
    want = config_of("orders", parse_stream_settings(asked))
    reached = merged_settings(before, changes_from(asked, have, want))
    assert reached.compaction == before.compaction


def test_without_subjects_the_name_is_the_subject() -> None:
    assert settings_of().subjects == ("orders",)


def test_limits_hold_to_an_eighth() -> None:
    settings = settings_of(max_bytes=8 * 2**20, max_age=800 * SECOND)
    assert settings.segment.max_bytes == 2**20
    assert settings.segment.max_age_seconds == 100


def test_the_duplicate_window_is_that_of_jetstream() -> None:
    assert settings_of().dedupe_window_seconds == 120
    assert settings_of(max_age=60 * SECOND).dedupe_window_seconds == 60
    assert settings_of(duplicate_window=5 * SECOND).dedupe_window_seconds == 5
    assert refused(duplicate_window=61 * SECOND, max_age=60 * SECOND).err_code == 10052


@pytest.mark.parametrize(
    "fields",
    [
        {"retention": "interest"},
        {"retention": "workqueue"},
        {"storage": "memory"},
        {"mirror": {"name": "other"}},
        {"sources": [{"name": "other"}]},
        {"republish": {"src": "a", "dest": "b"}},
        {"subject_transform": {"src": "a", "dest": "b"}},
        {"placement": {"cluster": "east"}},
        {"max_msgs_per_subject": 1001},
        {"discard": "new", "max_msgs": 10, "max_msgs_per_subject": 3},
        {"discard_new_per_subject": True},
        {"discard_new_per_subject": True, "max_msgs_per_subject": 1},
        {"discard_new_per_subject": True, "discard": "new"},
        {"discard_new_per_subject": True, "discard": "new", "max_msgs_per_subject": 2},
        {"allow_msg_ttl": True},
        {"allow_msg_counter": True},
        {"allow_atomic": True},
        {"allow_batched": True},
        {"allow_msg_schedules": True},
        {"persist_mode": "async"},
        {"consumer_limits": {"max_ack_pending": 5}},
        {"max_age": 5},
        {"max_age": -1},
        {"subjects": ["a b"]},
        {"subjects": ["a", "b", "a"]},
        {"subjects": ["a.>", "*.b"]},
        {"subjects": [f"s.{number}" for number in range(257)]},
        {"subjects": ["$JS.API.>"]},
        {"subjects": [">"]},
        {"max_msg_size": 2**30},
    ],
    ids=str,
)
def test_what_cannot_be_promised_is_refused(fields: dict[str, Any]) -> None:
    refusal = refused(**fields)
    assert (refusal.code, refusal.err_code) == (500, 10052)
    assert refusal.description


@pytest.mark.parametrize(
    "fields",
    [
        {"max_msgs": 1.5},
        {"max_msgs": "10"},
        {"max_msgs": True},
        {"max_msgs": 2**63},
        {"subjects": "orders"},
        {"subjects": [5]},
        {"retention": 5},
        {"retention": ["limits"]},
        {"no_ack": 1},
        {"metadata": {"a": 5}},
        {"metadata": []},
        {"metadata": {"a": "\ud800"}},
        {"description": {}},
        {"invented": 5},
    ],
    ids=ascii,
)
def test_what_has_another_type_is_not_json_of_a_stream(fields: dict[str, Any]) -> None:
    if fields == {"metadata": []}:
        assert settings_of(**fields).jetstream is not None  # empty is empty
    else:
        assert refused(**fields).err_code == 10025


def test_the_name_must_be_that_of_the_subject() -> None:
    with pytest.raises(JetStreamError) as refusal:
        settings_from("orders", {"name": "other"})
    assert refusal.value.err_code == 10056


@pytest.mark.parametrize("name", ["", "a.b", "_own", "-a", "x" * 129, "a b", "ä"])
def test_names_are_ours(name: str) -> None:
    with pytest.raises(JetStreamError) as refusal:
        settings_from(name, {"name": name})
    assert refusal.value.err_code == 10052


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
FIELDS = [*sorted(config_of("orders", settings_of())), "mirror", "no_ack", "metadata", "pedantic"]


@given(st.dictionaries(st.sampled_from(FIELDS), JSON_VALUES, max_size=6))
def test_no_json_raises_anything_else(fields: dict[str, Any]) -> None:
    config = {"name": "orders", **fields}
    with contextlib.suppress(JetStreamError):
        json.dumps(settings_from("orders", config))


def test_the_largest_message_of_nats_is_no_limit() -> None:
    assert config_of("orders", settings_of(max_msg_size=2**26))["max_msg_size"] == -1
