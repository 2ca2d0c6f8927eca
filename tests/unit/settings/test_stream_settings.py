from typing import Any

import pytest

from liftlog.errors import InvalidArgument
from liftlog.server.streams.description import history_warnings
from liftlog.settings import StreamSettings, parse_stream_settings


def test_defaults() -> None:
    stream = parse_stream_settings({"subject": "orders.>"})
    assert stream == StreamSettings(subject="orders.>")
    assert (stream.acks, stream.durability, stream.initial_offset) == ("on", "fsync", 1)
    assert stream.retention.max_age_seconds is None
    assert stream.dedupe.max_ids == 1_000_000
    assert stream.max_pending_bytes == 64 * 2**20
    assert (stream.batch.max_records, stream.batch.max_bytes) == (4096, 2**20)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"subject": ["a", "b.>"]},
        {"acks": "off", "queue_group": "g", "retention": {"max_age": 0.1, "max_messages": 7}},
        {"segment": {"max_bytes": 4097, "max_age": None}, "dedupe_window": "1h1s", "paused": True},
    ],
)
def test_the_yaml_dict_reads_back_as_the_same_settings(given: dict[str, Any]) -> None:
    stream = parse_stream_settings({"subject": "a", **given})
    written = stream.to_yaml_dict()
    assert parse_stream_settings(written) == stream
    assert parse_stream_settings(written).to_yaml_dict() == written


def test_the_yaml_dict_has_the_users_keys_and_values() -> None:
    written = parse_stream_settings(
        {"subject": "a", "acks": True, "retention": {"max_bytes": 10 * 2**30}}
    ).to_yaml_dict()
    assert written["acks"] == "on"
    assert written["dedupe_window"] == "2m"
    assert written["retention"] == {
        "max_age": None,
        "max_bytes": "10GiB",
        "max_messages": None,
        "discard": "old",
    }
    assert written["segment"] == {"max_bytes": "256MiB", "max_age": "1d"}


@pytest.mark.parametrize(
    ("given", "subjects", "written"),
    [("a.>", ("a.>",), "a.>"), (["a"], ("a",), "a"), (["b", "a"], ("b", "a"), ["b", "a"])],
)
def test_a_stream_has_one_subject_or_several(given: Any, subjects: Any, written: Any) -> None:
    stream = parse_stream_settings({"subject": given})
    assert (stream.subjects, stream.to_yaml_dict()["subject"]) == (subjects, written)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([], "1 to 256"),
        (["a", "a"], "overlap"),
        (["*.b", "c", "a.>"], "'*.b' and 'a.>' overlap"),
        (["a", "b c"], "'b c' is not a NATS subject"),
        (["a", 5], "text"),
        ({"a": "b"}, "text"),
        (None, "text"),
    ],
)
def test_subjects_that_no_stream_can_have(given: Any, problem: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_stream_settings({"subject": given})
    (found,) = caught.value.details["findings"]
    assert found["path"].startswith("subject")
    assert problem in found["problem"]


def test_all_findings_at_once() -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_stream_settings(
            {"subject": 5, "retension": {}, "flush": {"interval": -1}, "replicas": True}
        )
    found = {item["path"]: item["problem"] for item in caught.value.details["findings"]}
    assert set(found) == {"subject", "retension", "flush.interval", "replicas"}
    assert "did you mean 'retention'" in found["retension"]


@pytest.mark.parametrize("given", [None, [], "x", {1: 2}, {b"subject": "a"}, {"x" * 5000: 1}])
def test_hostile_input_is_an_invalid_argument(given: Any) -> None:
    with pytest.raises(InvalidArgument):
        parse_stream_settings(given)


def test_what_a_client_can_make_us_look_at_is_bounded() -> None:
    for values in (
        {f"k{n}": 1 for n in range(100_000)},
        {"flush": dict.fromkeys(map(str, range(65)))},
    ):
        with pytest.raises(InvalidArgument, match="more than 64 settings"):
            parse_stream_settings({"subject": "a"} | values)
    with pytest.raises(InvalidArgument) as caught:
        parse_stream_settings({"subject": "a" * 1_000_000, "b" * 1_000_000: 1, "acks": "c" * 1000})
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize(
    "bad", [{"a": {}}, {"subject": {"a": 1}}, {"subject": b"a"}, {"flush": [1]}, {"flush": {1: 2}}]
)
def test_wrong_shapes(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        parse_stream_settings({"subject": "a"} | bad)


def test_a_reserved_subject_needs_acks_off() -> None:
    with pytest.raises(InvalidArgument, match="expected off"):
        parse_stream_settings({"subject": "$JS.>"})
    parse_stream_settings({"subject": "$JS.>", "acks": "off"})


# --- compaction -----------------------------------------------------------------


def test_compaction_is_off_unless_its_section_is_there() -> None:
    assert parse_stream_settings({"subject": "a"}).compaction is None
    assert parse_stream_settings({"subject": "a", "compaction": None}).compaction is None
    off = parse_stream_settings({"subject": "a", "compaction": {"enabled": False}}).compaction
    assert off is not None
    assert not off.enabled


def test_a_longer_history_than_compaction_keeps_is_refused() -> None:
    ours: dict[str, Any] = {"subject": "a", "jetstream": {"max_msgs_per_subject": 5}}
    with pytest.raises(InvalidArgument, match="expected 1 with compaction"):
        parse_stream_settings(ours | {"compaction": {}})
    parse_stream_settings(ours | {"compaction": {"enabled": False}})
    parse_stream_settings(ours | {"compaction": None})
    parse_stream_settings(ours | {"compaction": {}, "jetstream": {"max_msgs_per_subject": 1}})
    # One that exists opens, and is described with a warning.
    exists = parse_stream_settings(ours | {"compaction": {}}, exists=True)
    assert exists.compaction is not None
    (warning,) = history_warnings(exists)
    assert "set compaction: null" in warning
    assert history_warnings(parse_stream_settings(ours)) == []


def test_compaction_defaults() -> None:
    settings = parse_stream_settings({"subject": "a", "compaction": {}})
    assert settings.compaction is not None
    assert settings.compaction.enabled
    assert settings.to_yaml_dict()["compaction"] == {
        "enabled": True,
        "min_dirty_ratio": 0.5,
        "min_lag": "0s",
        "max_lag": None,
        "tombstone_retention": "1d",
        "max_rate": None,
    }
    assert settings.to_yaml_dict()["rebatch"] == {"enabled": True, "min_age": "10m"}


@pytest.mark.parametrize(
    ("key", "value", "accepted"),
    [
        ("min_dirty_ratio", 1.5, "expected at most 1"),
        ("min_dirty_ratio", -0.1, "expected at least 0"),
        ("min_dirty_ratio", float("nan"), "expected at most 1"),
        ("min_dirty_ratio", "half", "expected a number"),
        ("min_lag", -1, "expected a duration"),
        ("max_lag", 0, "greater than 0"),
        ("max_rate", 0, "greater than 0"),
        ("min_dirty", 0.5, "did you mean 'min_dirty_ratio'"),
    ],
)
def test_bad_compaction_settings(key: str, value: Any, accepted: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_stream_settings({"subject": "a", "compaction": {key: value}})
    [found] = caught.value.details["findings"]
    assert found["path"] == f"compaction.{key}"
    assert accepted in found["problem"]


def test_the_longest_lag_is_not_below_the_shortest() -> None:
    with pytest.raises(InvalidArgument, match=r"max_lag.*min_lag"):
        parse_stream_settings({"subject": "a", "compaction": {"min_lag": "1h", "max_lag": "1m"}})
