"""Every combination of columns comes back as it went in, whole and trimmed."""

from __future__ import annotations

from itertools import product

import pytest

from liftlog.records import MessageHeaders, decode_batch, encode_batch, iter_batches
from liftlog.records.format import (
    ESCAPED_SUBJECTS,
    HEADERS,
    KEYS,
    OFFSET_DELTAS,
    SUBJECT_IDS,
    TIMESTAMP_DELTAS,
    TOMBSTONES,
    unescape_subject,
)

BASE_NS = 1_700_000_000_000_000_000
COUNT = 5
VALUES: list[bytes | None] = [b"", b"one", b"\x00" * 9, b"four", b"\xff" * 300]
KEYS_GIVEN: list[bytes | None] = [b"k", None, b"", b"k", b"longer key"]
BLOCKS = [b"", b"NATS/1.0\r\nA: 1\r\n\r\n", b"", b"NATS/1.0\r\na: 2\r\nB:x\r\n\r\n", b""]
OFFSETS = [100, 103, 104, 110, 119]


@pytest.mark.parametrize(
    ("compacted", "stamped", "subjects", "escaped", "keyed", "headed", "tombs"),
    list(product([False, True], [False, True], [1, 3], *[[False, True]] * 4)),
)
def test_every_combination_of_columns_comes_back(
    compacted: bool,
    stamped: bool,
    subjects: int,
    escaped: bool,
    keyed: bool,
    headed: bool,
    tombs: bool,
) -> None:
    raw_subjects = [
        b"s.%d" % (i % subjects) + (b"\xff\\" if escaped else b"") for i in range(COUNT)
    ]
    values = [None if tombs and i in (1, 4) else value for i, value in enumerate(VALUES)]
    stamps = [(BASE_NS, 2), (BASE_NS + 7000, 3)] if stamped else [(BASE_NS, COUNT)]
    data = encode_batch(
        base_offset=100,
        leader_epoch=7,
        commit_group=65535,
        stamps=stamps,
        subjects=raw_subjects,
        values=values,
        keys=KEYS_GIVEN if keyed else None,
        headers=BLOCKS if headed else None,
        has_tombstones=tombs,
        offsets=OFFSETS if compacted else None,
        last_offset=125 if compacted else None,
    )
    assert len(data) % 8 == 0
    batch = decode_batch(b"odd" + bytes(data) + b"behind", 3)
    expected_bits = (
        compacted * OFFSET_DELTAS
        | stamped * TIMESTAMP_DELTAS
        | (subjects > 1) * SUBJECT_IDS
        | escaped * ESCAPED_SUBJECTS
        | keyed * KEYS
        | headed * HEADERS
        | tombs * TOMBSTONES
    )
    assert batch.header.attributes == expected_bits
    assert (batch.header.leader_epoch, batch.header.commit_group) == (7, 65535)
    assert batch.header.max_timestamp_ns == stamps[-1][0]
    assert batch.next_offset == (126 if compacted else 105)
    offsets = OFFSETS if compacted else list(range(100, 105))
    times = [stamp for stamp, count in stamps for _ in range(count)]
    for first, stop in ((0, None), (104, None), (101, 104), (0, 104), (1000, None), (0, 0)):
        part = batch.trim(first, stop)
        kept = [i for i, o in enumerate(offsets) if o >= first and (stop is None or o < stop)]
        assert len(part) == len(kept)
        assert list(part.offsets()) == [offsets[i] for i in kept]
        assert part.timestamps_ns() == [times[i] for i in kept]
        assert part.values() == [values[i] for i in kept]
        assert [None if v is None else bytes(v) for v in part.value_views()] == part.values()
        assert part.keys() == [KEYS_GIVEN[i] if keyed else None for i in kept]
        assert part.headers() == [BLOCKS[i] if headed else b"" for i in kept]
        found = part.subjects()
        if escaped:
            assert part.escaped_subjects() >= set(found)
            assert [unescape_subject(name) for name in found] == [raw_subjects[i] for i in kept]
        else:
            assert part.escaped_subjects() == set()
            assert found == [raw_subjects[i].decode() for i in kept]
        columns = (part.offsets(), part.timestamps_ns(), found, part.keys(), part.values())
        assert [tuple(r)[:5] for r in part] == list(zip(*columns, strict=True))
        assert [dict(r.headers) for r in part] == [
            dict(MessageHeaders(BLOCKS[i] if headed else b"")) for i in kept
        ]
        if kept:
            assert part.base_offset == offsets[kept[0]]


def test_trimming_a_trimmed_batch_only_narrows_it() -> None:
    batch = decode_batch(_plain(count=10))
    assert list(batch.trim(3, 8).trim(1, 6).offsets()) == [3, 4, 5]
    assert batch.trim(5).trim(0).values() == batch.trim(5).values()
    assert repr(batch.trim(5)) == "<RecordBatch base_offset=5 records=6>"


def test_an_empty_batch_stands_for_its_offsets() -> None:
    data = encode_batch(
        base_offset=50, leader_epoch=1, commit_group=0, stamps=[], subjects=[], values=[],
        last_offset=59,
    )  # fmt: skip
    batch = decode_batch(data)
    assert (len(batch), batch.base_offset, batch.next_offset) == (0, 50, 60)
    assert batch.values() == batch.keys() == batch.subjects() == batch.records() == []
    assert batch.value_views() == [] == batch.headers() == batch.timestamps_ns()
    assert batch.trim(55).values() == []


def test_empty_values_are_not_tombstones() -> None:
    data = encode_batch(
        base_offset=1, leader_epoch=1, commit_group=0, stamps=[(1, 3)], subjects=[b"s"] * 3,
        values=[b"", None, b""], has_tombstones=True,
    )  # fmt: skip
    assert decode_batch(data).values() == [b"", None, b""]


def test_stamps_keep_their_microseconds_and_the_header_says_what_readers_find() -> None:
    stamps = [(BASE_NS + 123, 1), (BASE_NS + 123 + 1999, 1), (BASE_NS - 10**12, 1)]
    batch = decode_batch(_plain(count=3, stamps=stamps))
    assert batch.timestamps_ns() == [BASE_NS + 123, BASE_NS + 123 + 1000, BASE_NS + 123]
    assert batch.header.max_timestamp_ns == max(batch.timestamps_ns())


def test_a_stamp_an_hour_and_more_ahead_is_stored_as_far_as_it_goes() -> None:
    batch = decode_batch(_plain(count=2, stamps=[(0, 1), (10**16, 1)]))
    assert batch.timestamps_ns() == [0, 0xFFFFFFFF * 1000]


def test_many_subjects() -> None:
    subjects = [b"s.%d" % i for i in range(65535)]
    data = encode_batch(
        base_offset=1, leader_epoch=1, commit_group=0, stamps=[(1, 65535)], subjects=subjects,
        values=[b""] * 65535,
    )  # fmt: skip
    assert decode_batch(data).subjects() == [s.decode() for s in subjects]


def test_one_escaped_subject_among_plain_ones_is_told_apart() -> None:
    data = encode_batch(
        base_offset=1, leader_epoch=1, commit_group=0, stamps=[(1, 3)],
        subjects=[b"a\\x5c", b"a\xfe\\", "ä".encode()], values=[b""] * 3,
    )  # fmt: skip
    batch = decode_batch(data)
    assert batch.subjects() == ["a\\x5c", "a\\xfe\\x5c", "ä"]
    assert batch.escaped_subjects() == {"a\\xfe\\x5c"}
    assert unescape_subject("a\\xfe\\x5c") == b"a\xfe\\"


def test_batches_follow_each_other() -> None:
    run = _plain(count=2) + _plain(count=1, base_offset=3) + _plain(count=4, base_offset=4)
    assert [list(batch.offsets()) for batch in iter_batches(run)] == [[1, 2], [3], [4, 5, 6, 7]]


def test_values_stay_when_the_buffer_is_reused() -> None:
    for count in (1, 3, 40):
        buffer = bytearray(_plain(count=count))
        values = decode_batch(buffer).values()
        expected = [bytes(value or b"") for value in values]
        buffer[:] = bytes(len(buffer))
        assert values == expected


@pytest.mark.parametrize(
    "wrong",
    [
        {"subjects": [b"s"]},
        {"keys": [b"k"] * 3},
        {"headers": [b""]},
        {"offsets": [1]},
        {"stamps": [(1, 1), (2, 2)]},
        {"values": [], "subjects": []},
    ],
)
def test_columns_that_do_not_fit_together_are_refused(wrong: dict[str, object]) -> None:
    good: dict[str, object] = {
        "base_offset": 1, "leader_epoch": 1, "commit_group": 0, "stamps": [(1, 2)],
        "subjects": [b"s"] * 2, "values": [b"v"] * 2,
    }  # fmt: skip
    encode_batch(**good)  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        encode_batch(**(good | wrong))  # type: ignore[arg-type]


def test_more_records_than_ids_can_number_are_refused() -> None:
    with pytest.raises(ValueError, match="more than a batch can hold"):
        _plain(count=65536)


class TestMessageHeaders:
    BLOCK = b"NATS/1.0 100 Idle\r\nFoo: a\r\nfoo:  b \r\nBin: \xff\r\nbad line\r\n: none\r\n\r\n"

    def test_names_are_told_apart_as_nats_does(self) -> None:
        headers = MessageHeaders(self.BLOCK)
        assert dict(headers) == {"Foo": "a", "foo": "b", "Bin": "\ufffd"}
        assert (headers["Foo"], headers["foo"]) == ("a", "b")
        assert "nothing" not in headers

    def test_a_look_up_ignores_case_where_no_name_is_the_same(self) -> None:
        headers = MessageHeaders(self.BLOCK)
        assert headers["FOO"] == "a"
        assert "fOO" in headers
        assert headers.get("missing") is None
        assert headers.get_all("fOO") == ["a", "b"]
        assert list(headers) == ["Foo", "foo", "Bin"]
        assert len(headers) == 3
        assert headers["bin"] == "\ufffd"
        assert headers.raw == self.BLOCK

    @pytest.mark.parametrize("block", [b"", b"XX", b"NATS/1.0", b"\xff\x00", b"NATS/1.0\r\n\r\n"])
    def test_blocks_without_headers_are_empty(self, block: bytes) -> None:
        assert dict(MessageHeaders(block)) == {}


def _plain(
    *, count: int, base_offset: int = 1, stamps: list[tuple[int, int]] | None = None
) -> bytes:
    return bytes(
        encode_batch(
            base_offset=base_offset,
            leader_epoch=1,
            commit_group=0,
            stamps=stamps or [(BASE_NS, count)],
            subjects=[b"s"] * count,
            values=[b"value %d" % i for i in range(count)],
        )
    )
