"""The socket and the files give the same rows, and the errors if rows are missing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.clients.nkey_seeds import seed_of
from support.daemons.served_logs import ServedLogs
from support.disks.stored_logs import batch_positions, flip

from acl.nkeys import SigningKey, find_seed
from acl.policy import Policy
from acl.tokens import hash_token
from liftlog.client import SyncBatchReader
from liftlog.errors import (
    CorruptMetadata,
    CorruptRange,
    Forbidden,
    InvalidArgument,
    LiftlogError,
    OffsetOutOfRange,
    SegmentsChanged,
    StaleIncarnation,
    StorageError,
    StreamNotFound,
    Unauthenticated,
)
from liftlog.log import LogConfig
from liftlog.log.files.manifest import SKIPPED, QuarantinedRange
from liftlog.records.columns.positions import Batches
from liftlog.spark import daemon_transport
from liftlog.spark.options import ScanOptions, parse_options
from liftlog.spark.scan import limit_bytes, open_transport, plan, read, step_of

NS = 1_700_000_000_000_000_000
Options = Callable[..., ScanOptions]


SEED = seed_of(b"s" * 32)
SECRET = "a-secret-that-is-long-enough"
ACL_FILE = f"""
principals:
  bob: {{token_hash: "{hash_token(SECRET)}"}}
  ops: {{nkey: {SigningKey(find_seed(SEED.encode())).public_key}}}
roles:
  reader: [{{allow: [read], streams: [orders]}}]
bindings: {{bob: [reader], ops: [reader]}}
"""


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[ServedLogs]:
    with ServedLogs(tmp_path / "streams", segment_max_bytes=20_000) as served:
        yield served


@pytest.fixture(params=["server", "path"])
def options(request: pytest.FixtureRequest, logs: ServedLogs) -> Options:
    """Options for either transport."""

    def make(**given: Any) -> ScanOptions:
        where = {"server": logs.server} if request.param == "server" else {}
        if request.param == "path":
            where = {"path": str(logs.directory)}
        return parse_options({"stream": "orders"} | where | given)

    return make


def fill(logs: ServedLogs, count: int = 40, **settings: Any) -> int:
    """Append `count` batches of 25 records, one second apart, all sealed. Returns the end."""
    stream = logs.add("orders", **settings)
    for i in range(count):
        values: list[bytes | None] = [b"%d" % i * 20] * 24 + [None]
        logs.append(
            "orders",
            values,
            timestamp_ns=NS + i * 1_000_000_000,
            subject=b"orders.%d" % (i % 3),
            keys=[b"k%d" % j for j in range(25)],
        )
    logs.call(stream.real_log.writer.roll)
    return stream.real_log.log_end_offset


def offsets(options: ScanOptions) -> list[int]:
    return [
        offset
        for wanted in plan(options)
        for rows in read(options, wanted)
        for offset in rows.column("offset").to_pylist()
    ]


def test_both_give_identical_rows(logs: ServedLogs) -> None:
    end = fill(logs)
    columns = "offset,timestamp,subject,key,headers,value,stream"
    found = []
    for where in ({"server": logs.server}, {"path": str(logs.directory)}):
        for size in ("1GiB", "30000"):
            chosen = parse_options(
                {"stream": "orders", "columns": columns, "targetPartitionBytes": size} | where
            )
            ranges = plan(chosen)
            assert (len(ranges) == 1) == (size == "1GiB")
            rows = [row for one in ranges for made in read(chosen, one) for row in made.to_pylist()]
            found.append(rows)
    assert [row["offset"] for row in found[0]] == list(range(1, end))
    assert all(rows == found[0] for rows in found)


def test_ranges_and_times(logs: ServedLogs, options: Options) -> None:
    end = fill(logs)
    assert offsets(options(startingOffset="30", endingOffset="41")) == list(range(30, 41))
    assert offsets(options(startingOffset="latest")) == []
    assert offsets(options(startTimestamp=str(NS // 1_000_000 + 38_000))) == list(
        range(38 * 25 + 1, end)
    )
    assert offsets(options(endTimestamp=str(NS // 1_000_000 + 1))) == list(range(1, 26))
    assert offsets(options(startTimestamp="2100-01-01")) == []
    wanted = [offset for offset in range(1, end) if (offset - 1) // 25 % 3 == 1]
    assert offsets(options(subject="*.1")) == wanted
    assert offsets(options(subject="none")) == []


def test_an_end_that_is_not_there_is_refused(logs: ServedLogs, options: Options) -> None:
    end = fill(logs)
    with pytest.raises(InvalidArgument, match="beyond the high watermark"):
        plan(options(endingOffset=str(end + 1)))
    with pytest.raises(InvalidArgument, match="beyond the end"):
        plan(options(startingOffset=str(end + 1)))
    with pytest.raises(InvalidArgument, match="lies after endingOffset"):
        plan(options(startingOffset="9", endingOffset="8"))


def test_nothing_beyond_the_high_watermark_of_planning(logs: ServedLogs, options: Options) -> None:
    end = fill(logs)
    ranges = plan(options())
    logs.append("orders", [b"later"])
    logs.call(logs.broker.stream("orders").real_log.writer.roll)
    found = [row for one in ranges for made in read(options(), one) for row in made.to_pylist()]
    assert max(row["offset"] for row in found) == end - 1
    assert offsets(options())[-1] == end


def test_an_empty_stream(logs: ServedLogs, options: Options) -> None:
    logs.add("orders")
    assert plan(options()) == []


def test_what_retention_has_removed(logs: ServedLogs, options: Options) -> None:
    end = fill(logs)
    planned = plan(options())
    log = logs.broker.stream("orders").real_log
    logs.call(lambda: log.structure.remove_before(300, 100))
    assert offsets(options()) == list(range(300, end))
    with pytest.raises(OffsetOutOfRange, match=r"begins at 300.*failOnDataLoss"):
        plan(options(startingOffset="7"))
    assert offsets(options(startingOffset="7", failOnDataLoss="false")) == list(range(300, end))
    # Planned before, read after it.
    with pytest.raises(OffsetOutOfRange, match=r"\[1, 300\).*failOnDataLoss"):
        list(read(options(), planned[0]))
    lenient = options(failOnDataLoss="false")
    found = [row for made in read(lenient, planned[0]) for row in made.to_pylist()]
    assert [row["offset"] for row in found] == list(range(300, end))


@pytest.mark.parametrize("place", ["body", "header"])
def test_damage(
    logs: ServedLogs, options: Options, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    end = fill(logs)
    path = logs.broker.stream("orders").real_log.segments[0].path
    position, header = batch_positions(path)[3]
    flip(path, position + (100 if place == "body" else 20))
    bad = range(header.base_offset, header.next_offset)
    with pytest.raises(CorruptRange) as caught:
        offsets(options())
    assert (caught.value.first_offset, caught.value.next_offset) == (bad.start, bad.stop)
    assert "failOnDataLoss=false" in caught.value.hint
    wanted = [offset for offset in range(1, end) if offset not in bad]
    assert offsets(options(failOnDataLoss="false", targetPartitionBytes="5000")) == wanted
    assert f"first_offset={bad.start} next_offset={bad.stop}" in caplog.text
    # What is not asked for may be damaged.
    assert offsets(options(startingOffset=str(bad.stop))) == list(range(bad.stop, end))


@pytest.mark.parametrize("reason", ["bit rot", SKIPPED])
def test_quarantined_ranges(logs: ServedLogs, options: Options, reason: str) -> None:
    end = fill(logs)
    log = logs.broker.stream("orders").real_log
    path = log.segments[1].path
    position, header = batch_positions(path)[2]
    bad = QuarantinedRange(
        header.base_offset,
        header.next_offset,
        path.name,
        position,
        position + header.length,
        reason,
    )
    logs.call(lambda: log.structure.quarantine(path.name, [bad]))
    wanted = [o for o in range(1, end) if not bad.first_offset <= o < bad.next_offset]
    if reason == SKIPPED:
        assert offsets(options()) == wanted
        return
    with pytest.raises(CorruptRange) as caught:
        offsets(options())
    assert caught.value.first_offset == bad.first_offset
    assert caught.value.next_offset == bad.next_offset
    assert offsets(options(failOnDataLoss="false")) == wanted


def test_a_stream_made_anew_is_another_one(logs: ServedLogs, options: Options) -> None:
    fill(logs)
    [planned] = plan(options())
    logs.delete("orders")
    shutil.rmtree(logs.directory / "orders")
    fill(logs)
    with pytest.raises(StaleIncarnation):
        list(read(options(failOnDataLoss="false"), planned))


def test_no_such_stream(logs: ServedLogs, tmp_path: Path) -> None:
    with pytest.raises(StreamNotFound, match="has no stream 'orders'"):
        plan(parse_options({"stream": "orders", "server": logs.server}))
    with pytest.raises(InvalidArgument, match="is not a directory on this host"):
        plan(parse_options({"path": str(tmp_path / "none")}))
    with pytest.raises(InvalidArgument, match="holds no stream"):
        plan(parse_options({"path": str(tmp_path)}))


def test_tokens_come_from_a_file(logs: ServedLogs, tmp_path: Path) -> None:
    fill(logs)
    file = tmp_path / "token"
    chosen = {"stream": "orders", "server": logs.server, "tokenFile": str(file)}
    with pytest.raises(InvalidArgument, match="cannot be read: No such file"):
        plan(parse_options(chosen))
    file.write_text("\n")
    with pytest.raises(InvalidArgument, match="is empty"):
        plan(parse_options(chosen))
    file.write_text("reader.secret\n")
    assert len(plan(parse_options(chosen))) == 1  # not sent: the daemon has no ACL


# --- files ---


def files(logs: ServedLogs, **given: Any) -> ScanOptions:
    return parse_options({"path": str(logs.directory / "orders")} | given)


def test_files_end_where_the_active_segment_begins(logs: ServedLogs) -> None:
    end = fill(logs)
    logs.append("orders", [b"active"])
    assert offsets(files(logs)) == list(range(1, end))


def test_a_copy_without_indexes(logs: ServedLogs, tmp_path: Path) -> None:
    end = fill(logs)
    copy = tmp_path / "copy"
    shutil.copytree(logs.directory / "orders", copy, ignore=shutil.ignore_patterns("*.index"))
    chosen = parse_options({"path": f"file:{copy}", "targetPartitionBytes": "5000"})
    assert offsets(chosen) == list(range(1, end))
    when = parse_options({"path": str(copy), "startTimestamp": str(NS // 1_000_000 + 20_000)})
    assert offsets(when) == list(range(501, end))


def test_a_copy_that_lacks_a_file(logs: ServedLogs) -> None:
    fill(logs)
    path = logs.broker.stream("orders").real_log.segments[1].path
    path.unlink()
    with pytest.raises(StorageError, match=f"lacks {path.name}"):
        offsets(files(logs, failOnDataLoss="false"))


def test_a_damaged_manifest(logs: ServedLogs) -> None:
    fill(logs)
    flip(logs.directory / "orders" / "manifest", 60)
    assert plan(files(logs))
    flip(logs.directory / "orders" / "manifest.copy", 60)
    with pytest.raises(CorruptMetadata):
        plan(files(logs))


@pytest.mark.parametrize("compaction", [None, {}, {"enabled": False}])
def test_files_that_were_rewritten_since(logs: ServedLogs, compaction: object) -> None:
    """In a compacted stream, a newest value may have moved to another place. Otherwise a rewrite
    changes nothing."""
    end = fill(logs)
    log = logs.broker.stream("orders").real_log
    settings = {} if compaction is None else {"compaction": compaction}
    logs.call(lambda: log.structure.set_metadata({"settings": settings}))
    planned = plan(files(logs, targetPartitionBytes="10000"))
    [old, *_] = log.segments
    entry = old.entry()
    new = type(entry)(
        base_offset=entry.base_offset,
        generation=entry.generation + 1,
        size_bytes=entry.size_bytes,
        next_offset=entry.next_offset,
        record_count=entry.record_count,
        max_timestamp_ns=entry.max_timestamp_ns,
    )
    shutil.copy(old.path, old.path.with_name(new.file_name))
    logs.call(lambda: log.structure.replace_segments([old.path.name], [new]))
    assert not old.path.exists()
    found: list[int] = []
    errors: list[LiftlogError] = []
    for one in planned:
        try:
            for made in read(files(logs), one):
                found += made.column("offset").to_pylist()
        except SegmentsChanged as error:
            errors.append(error)
    if compaction == {}:
        assert errors
        assert "read again" in errors[0].hint
        assert found[-1] == end - 1  # what was not touched is read all the same
    else:
        assert not errors
        assert found == list(range(1, end))


# --- access ---


def test_refusals_say_why(tmp_path: Path) -> None:
    with ServedLogs(tmp_path / "streams", policy=Policy.load(ACL_FILE)) as logs:
        end = fill(logs)
        token = tmp_path / "token"
        token.write_text(f"bob.{SECRET}\n")
        given = {"stream": "orders", "server": logs.server}
        with pytest.raises(Unauthenticated):
            plan(parse_options(given))
        allowed = parse_options(given | {"tokenFile": str(token)})
        assert offsets(allowed) == list(range(1, end))
        seed = tmp_path / "ops.nk"
        seed.write_text(SEED)
        assert offsets(parse_options(given | {"nkeyFile": str(seed)})) == list(range(1, end))
        seed.unlink()
        with pytest.raises(InvalidArgument, match=r"cannot read the nkey .*ops\.nk"):
            plan(parse_options(given | {"nkeyFile": str(seed)}))
        logs.add("wages")
        with pytest.raises(Forbidden, match="no rule allows bob to read stream 'wages'"):
            plan(parse_options(given | {"tokenFile": str(token), "stream": "wages"}))


def test_who_applies_the_subject(logs: ServedLogs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are the same. Only with filterInDaemon are few bytes sent."""
    fill(logs)
    sent: list[int] = []
    real = daemon_transport.together

    def counting(reader: SyncBatchReader) -> Iterator[Batches]:
        for batch in real(reader):
            sent.append(batch.size_bytes)
            yield batch

    rows, sizes = [], []
    for where in ("false", "true"):
        chosen = parse_options(
            {
                "stream": "orders",
                "server": logs.server,
                "subject": "orders.1",
                "filterInDaemon": where,
            }
        )
        with monkeypatch.context() as patched:
            patched.setattr(daemon_transport, "together", counting)
            rows.append(offsets(chosen))
        sizes.append(sum(sent))
        sent.clear()
    assert rows[0] == rows[1]
    assert len(rows[0]) == 13 * 25
    assert sizes[1] < 0.5 * sizes[0]


def test_files_of_which_nothing_is_sealed(logs: ServedLogs) -> None:
    """There is an error instead of an empty result for a stream with records."""
    stream = logs.add("young")
    options = parse_options({"path": str(stream.real_log.directory)})
    assert plan(options) == []
    logs.append("young", [b"one", b"two"])
    with pytest.raises(InvalidArgument, match=r"no sealed segment.*use server="):
        plan(options)
    logs.call(stream.real_log.writer.roll)
    (wanted,) = plan(options)
    assert (wanted.first_offset, wanted.end_offset) == (1, 3)


def test_parts_are_as_large_as_asked_for_whatever_the_density(
    logs: ServedLogs, options: Options
) -> None:
    """Small records first, then large ones: divided by offsets alone, one part would have nearly
    all bytes."""
    logs.broker.config = LogConfig(segment_max_bytes=1 << 22, segment_max_age_ns=None)
    stream = logs.add("orders")
    for i in range(600):
        logs.append("orders", [b"x" * (10 if i < 500 else 20_000)] * 5)
    logs.call(stream.real_log.writer.roll)
    target = 1 << 20
    planned = plan(options(targetPartitionBytes=str(target)))
    sizes = [
        sum(
            len(value)
            for rows in read(options(), one)
            for value in rows.column("value").to_pylist()
        )
        for one in planned
    ]
    assert sum(sizes) == 500 * 5 * 10 + 100 * 5 * 20_000
    assert max(sizes) < 1.3 * target
    assert len(planned) <= 12


def test_a_trigger_takes_as_many_bytes_as_asked_for(logs: ServedLogs, options: Options) -> None:
    logs.broker.config = LogConfig(segment_max_bytes=1 << 22, segment_max_age_ns=None)
    stream = logs.add("orders")
    for i in range(600):
        logs.append("orders", [b"x" * (10 if i < 500 else 20_000)] * 5)
    logs.call(stream.real_log.writer.roll)
    most = 1 << 20
    with open_transport(options()) as transport:
        state = transport.state()
        first, taken = 1, []
        while first < state.end_offset:
            measured = transport.measure(state, first, state.end_offset, step_of(most))
            end = limit_bytes(measured, first, state.end_offset, most)
            small, large = max(min(end, 2501) - first, 0), max(end - max(first, 2501), 0)
            taken.append(small * 10 + large * 20_000)
            first = end
    assert max(taken) < 1.3 * most
    assert len(taken) <= 14
