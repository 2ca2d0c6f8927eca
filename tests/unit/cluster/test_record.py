"""The record of a stream as JSON: what is kept, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from liftlog.cluster.record import StreamMetadata, default_min_isr
from liftlog.errors import CorruptMetadata, UnsupportedFormat

RECORD = StreamMetadata(
    name="orders",
    incarnation="00c0ffee",
    settings={"subject": "orders.>", "min_isr": 2, "of_tomorrow": [1]},
    replicas=("a", "b", "c"),
    leader="a",
    leader_epoch=7,
    isr=("a", "b"),
    starts={"a": 4, "b": 9, "c": 2},
    version=31,
)


def changed(**keys: Any) -> bytes:
    return json.dumps({**json.loads(RECORD.to_json()), **keys}).encode()


def test_what_is_written_is_read() -> None:
    assert StreamMetadata.from_json(RECORD.to_json()) == RECORD


def test_the_json_is_of_the_record_as_it_is_not_of_the_one_it_was_made_from() -> None:
    before = RECORD.to_json()
    after = replace(RECORD, version=32)
    assert json.loads(after.to_json())["version"] == 32
    assert after.checksum != RECORD.checksum
    assert RECORD.to_json() is before  # made once


def test_keys_of_newer_versions_survive_a_rewrite() -> None:
    data = changed(of_tomorrow={"x": [1, None]}, second=True)
    record = StreamMetadata.from_json(data)
    assert record.unknown == {"of_tomorrow": {"x": [1, None]}, "second": True}
    assert json.loads(record.to_json()) == json.loads(data)
    assert record.settings["of_tomorrow"] == [1]


def test_keys_that_an_older_version_did_not_know_have_a_meaning() -> None:
    value = json.loads(RECORD.to_json())
    for key in ("unclean_epoch", "log_start", "adding", "removing", "observers", "system"):
        del value[key]
    assert StreamMetadata.from_json(json.dumps(value).encode()) == RECORD


def test_a_record_has_the_bytes_of_the_first_version_of_its_format() -> None:
    """Nodes of several versions know a record by its checksum, which is of these bytes."""
    first = (
        b'{"v":1,"name":"orders","version":31,"incarnation":"00c0ffee","deleted":false,"former":[],'
        b'"system":false,"settings":{"subject":"orders.>","min_isr":2,"of_tomorrow":[1]},'
        b'"log_start":0,"replicas":["a","b","c"],"adding":[],"removing":[],"observers":[],'
        b'"leader":"a","leader_epoch":7,"isr":["a","b"],"eligible":[],"last_eligible":[],'
        b'"starts":{"a":4,"b":9,"c":2},"unclean_epoch":0,"trail":[]}'
    )
    assert RECORD.to_json() == first
    assert StreamMetadata.from_json(first).to_json() == first


def test_a_key_of_a_later_version_stands_where_an_older_version_writes_it() -> None:
    record = replace(RECORD, decided=31, unknown={"of_tomorrow": 1})
    value = json.loads(record.to_json())
    later = ("of_tomorrow", "decided")
    as_unknown = {name: value.pop(name) for name in later}
    older = json.dumps({**as_unknown, **value}, separators=(",", ":")).encode()
    assert record.to_json() == older
    assert StreamMetadata.from_json(older).checksum == record.checksum


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "format is None"),
        (changed(v=True), "format is True"),
        (changed(v=0), "format is 0"),
        (changed(version=-1), "version is -1"),
        (changed(leader_epoch=True), "leader_epoch is True"),
        (changed(leader_epoch="7"), "leader_epoch is '7'"),
        (changed(replicas="abc"), "replicas is 'abc'"),
        (changed(replicas=["a", ""]), "replicas is"),
        (changed(starts={"a": "1"}), "starts is"),
        (changed(settings={"min_isr": "2"}), "settings is"),
        (changed(settings={"min_isr": 4}), "min_isr is 4, of 3 replicas"),
        (changed(settings={"min_isr": 0}), "min_isr is 0"),
        (changed(removing=["b", "c"]), "min_isr is 2, of 1 replicas"),
        (changed(isr=["a", "d"]), "not among"),
        (changed(eligible=["b"]), "in two of"),
        (changed(replicas=["a", "b", "c", "a"]), "names a node twice"),
        (changed(observers=["c"]), "names a node twice"),
        (changed(leader="c"), "the leader c is not in the ISR"),
        (changed(replicas=[], isr=[], leader=None), "names no replica"),
    ],
)
def test_a_damaged_record_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(CorruptMetadata, match=problem):
        StreamMetadata.from_json(data)


@pytest.mark.parametrize("key", ["name", "replicas", "leader", "leader_epoch", "isr"])
def test_a_record_without_a_needed_key_is_refused(key: str) -> None:
    value = json.loads(RECORD.to_json())
    del value[key]
    with pytest.raises(CorruptMetadata, match=f"{key} is missing"):
        StreamMetadata.from_json(json.dumps(value).encode())


def test_a_record_of_a_newer_format_asks_for_an_upgrade() -> None:
    with pytest.raises(UnsupportedFormat, match="upgrade this liftlog"):
        StreamMetadata.from_json(changed(v=2))


@pytest.mark.parametrize(("replicas", "smallest"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)])
def test_the_smallest_isr_without_a_setting(replicas: int, smallest: int) -> None:
    assert default_min_isr(replicas) == smallest
    nodes = tuple("abcde"[:replicas])
    assert StreamMetadata("s", "i", {}, nodes, None, 1, ()).min_isr == smallest


def test_a_node_leads_only_in_the_life_that_it_registered() -> None:
    assert RECORD.leads("a", 4)
    assert not RECORD.leads("a", 5)
    assert not RECORD.leads("b", 9)
