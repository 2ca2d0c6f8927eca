"""All options are checked, and the text of an error names the right value."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from liftlog.errors import InvalidArgument
from liftlog.spark.columns import TYPES
from liftlog.spark.options import NAMES, ScanOptions, parse_options
from liftlog.spark.streaming import StreamReader


def parse(**given: str) -> ScanOptions:
    return parse_options({"stream": "orders"} | given)


def test_defaults() -> None:
    found = parse()
    assert found.server == "tcp://127.0.0.1:9292"
    assert (found.start, found.end, found.path, found.subject) == ("earliest", "latest", None, None)
    assert found.columns == ("offset", "timestamp", "subject", "key", "value")
    assert (found.rows_per_batch, found.target_partition_bytes) == (10_000, 128 << 20)
    assert found.fail_on_data_loss


def test_names_count_without_regard_to_case() -> None:
    found = parse_options(
        {
            "STREAM": "orders",
            "startingoffset": "7",
            "EndingOffset": "9",
            "includeheaders": "TRUE",
            "rowsperbatch": "5",
            "targetpartitionbytes": "2MiB",
            "maxbytespertrigger": "4096",
            "maxoffsetspertrigger": "12",
            "failondataloss": "false",
            "tokenfile": "/t",
            "tlscafile": "/ca",
            "subject": "orders.*",
        }
    )
    assert (found.start, found.end) == (7, 9)
    assert "headers" in found.columns
    assert (found.rows_per_batch, found.target_partition_bytes) == (5, 2 << 20)
    assert (found.max_offsets_per_trigger, found.max_bytes_per_trigger) == (12, 4096)
    assert (found.fail_on_data_loss, found.tls_ca_file) == (False, "/ca")
    assert found.token_file == "/t"
    assert parse(server="db:9", nkeyFile="/n").nkey_file == "/n"
    assert found.subject == "orders.*"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("db:9", "tcp://db:9"),
        ("[::1]:9", "tcp://[::1]:9"),
        ("tls://db:9", "tls://db:9"),
        ("unix:///run/x", "unix:///run/x"),
    ],
)
def test_addresses(text: str, address: str) -> None:
    assert parse(server=text).server == address


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00:00+02:00", datetime(2026, 1, 31, 10, tzinfo=UTC)),
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        ("1769860800000", datetime(2026, 1, 31, 12, tzinfo=UTC)),
    ],
)
def test_times_without_a_zone_are_utc(text: str, when: datetime) -> None:
    assert parse(startTimestamp=text, endTimestamp=text).start == when
    assert parse(endTimestamp=text).end == when


def test_a_path_names_the_stream() -> None:
    assert parse_options({"path": "/data/streams/orders/"}).stream == "orders"
    assert parse_options({"path": "/data", "stream": "orders"}).stream == "orders"


def test_columns() -> None:
    assert parse(columns="value, Key").columns == ("value", "key")
    assert parse(columns="value", includeHeaders="true").columns == ("value", "headers")
    assert set(parse(columns=",".join(TYPES)).columns) == set(TYPES)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"startingOffsets": "3"}, "did you mean 'startingOffset'"),
        ({"nonsense": "3"}, "there is no option 'nonsense' (the options are stream, server"),
        ({"token": "a.b"}, "tokenFile"),
        ({"stream": "a/b"}, "is not a stream name"),
        ({"server": "http://x"}, "server: 'http://x' is not the address of a liftlog daemon"),
        ({"server": "db"}, "server='db' has no port (write server=db:9292, with the port of"),
        ({"server": "db:"}, "write server=db:9292"),
        ({"server": "[::1]"}, "write server=[::1]:9292"),
        ({"server": "tls://db/"}, "server='tls://db/' has no port (write server=tls://db:9292"),
        ({"server": "x", "path": "/y"}, "exclude each other"),
        ({"startingOffset": "-1"}, "is not earliest, latest or an offset"),
        ({"startingOffset": "erliest"}, "is not earliest, latest or an offset"),
        ({"endingOffset": "earliest"}, "is not latest or an offset"),
        ({"startingOffset": "1", "startTimestamp": "2026-01-01"}, "exclude each other"),
        ({"endTimestamp": "yesterday"}, "is not a time"),
        ({"endTimestamp": "9" * 30}, "is not a time"),
        ({"subject": "a..b"}, "is not a subject pattern"),
        ({"columns": "offset,vlaue"}, "no column 'vlaue'; did you mean 'value'"),
        ({"columns": ""}, "no column ''"),
        ({"columns": "key,key"}, "twice"),
        ({"includeHeaders": "yes"}, "neither true nor false"),
        ({"rowsPerBatch": "0"}, "not a number above 0"),
        ({"maxOffsetsPerTrigger": "1.5"}, "not a number above 0"),
        ({"targetPartitionBytes": "many"}, "is not a size"),
        ({"maxBytesPerTrigger": "0"}, "is not a size"),
        ({"leaseSeconds": "3601"}, "longer than a lease can last"),
        ({"failOnDataLoss": ""}, "neither true nor false"),
    ],
)
def test_mistakes(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse(**given)
    assert said in str(caught.value)


def test_the_stream_has_to_be_named() -> None:
    with pytest.raises(InvalidArgument, match="which stream"):
        parse_options({})


def test_a_streaming_read_has_no_end() -> None:
    for name, value in (("endingOffset", "4"), ("endTimestamp", "2026-01-01")):
        with pytest.raises(InvalidArgument, match="availableNow"):
            parse_options({"stream": "orders", name: value}, streaming=True)


def test_limits_of_a_trigger() -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

    def limit(**given: str) -> object:
        return StreamReader(parse(**given)).getDefaultReadLimit()

    assert isinstance(limit(), ReadAllAvailable)
    assert limit(maxOffsetsPerTrigger="5", maxBytesPerTrigger="9") == ReadMaxRows(5)
    assert limit(maxBytesPerTrigger="9") == ReadMaxBytes(9)


def test_the_page_describes_every_option() -> None:
    from support.repository import REPOSITORY

    page = (REPOSITORY / "docs/reference/spark.md").read_text()
    assert [name for name in NAMES if f"| `{name}` |" not in page] == []
    assert [name for name in TYPES if f"| `{name}` |" not in page] == []
