"""Key-value buckets of JetStream's clients: a client deletes a key by a message with a header."""

from __future__ import annotations

import pytest
from support.spark.exporting import Export, ExportedStreams, Put, table

DELETED = b"KV-Operation: DEL\r\n"
PURGED = b"KV-Operation: PURGE\r\nNats-Rollup: sub\r\n"
EXPIRED = b"Nats-Marker-Reason: MaxAge\r\n"


@pytest.fixture
def bucket(streams: ExportedStreams) -> str:
    streams.create(
        "KV_in",
        subject="$KV.in.>",
        subject_sequences={},
        jetstream={"max_msgs_per_subject": 1},
    )
    return "KV_in"


@pytest.mark.parametrize("layout", ["copy-on-write", "merge-on-read"])
def test_deleted_keys_are_not_exported(
    streams: ExportedStreams, bucket: str, lake: str, layout: str
) -> None:
    export = Export(streams, bucket, lake, layout=layout)
    streams.put(bucket, [Put(key, b"first") for key in "abcde"])
    export()
    streams.put(bucket, [Put("a", b"", DELETED), Put("b", b"", PURGED), Put("c", b"", EXPIRED)])
    streams.put(bucket, [Put("a", b"again"), Put("f", b"x"), Put("f", b"", b"Y: z\r\n" + DELETED)])
    summary = export()
    assert summary.full is False
    assert {key: value for _, key, value in table(lake)} == {
        b"a": b"again",
        b"d": b"first",
        b"e": b"first",
    }


def test_headers_of_other_operations_and_streams_delete_nothing(
    streams: ExportedStreams, bucket: str, lake: str
) -> None:
    other = b"KV-Operation: PUT\r\nX-KV-Operation: DEL\r\n"
    streams.put(bucket, [Put("a", b"1", other), Put("b", b"")])
    Export(streams, bucket, lake)()
    assert {key: value for _, key, value in table(lake)} == {b"a": b"1", b"b": b""}
    streams.put("in", [Put("a", b"", DELETED)])
    Export(streams, "in", lake + "2")()
    assert {key: value for _, key, value in table(lake + "2")} == {b"a": b""}


def test_an_archive_keeps_them(streams: ExportedStreams, bucket: str, lake: str) -> None:
    streams.put(bucket, [Put("a", b"1"), Put("a", b"", DELETED)])
    Export(streams, bucket, lake, mode="append")()
    assert [(key, value) for _, key, value in table(lake)] == [(b"a", b"1"), (b"a", b"")]
