"""Sends hostile messages through every path by which a message leaves a stream or enters a stream
again.

`WAYS` has a function for each path. The function returns the results at the end of the path, one
`Found` for each message that it supports, in order. `round_trip` compares them with the sent
messages. `SURFACES` in tests/integration/test_round_trips.py lists the features that must have a
path.
"""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from support.clients.command_line import Cli
from support.clients.hostile_messages import Hostile
from support.clients.raw_nats import RawNats
from support.daemons.cluster import Cluster
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.spark.local_engine import LocalEngine, rows_of

from liftlog.client import Filter, Record, connect, connect_sync
from liftlog.client.dead_letters import DeadLetters, SyncDeadLetters
from liftlog.client.publisher import Publisher
from liftlog.client.sync_publisher import SyncPublisher
from liftlog.records.json_form import lines_of_json
from liftlog.records.message_headers import HeaderLine, header_lines
from liftlog.spark.export import paths
from liftlog.spark.export.job import ExportJob
from liftlog.spark.export.opening import open_table
from liftlog.spark.export.planning import ExportRequest
from liftlog.spark.options import parse_options
from liftlog.spark.scan import plan, read

SOURCE = "hostile"
"""The stream at which each path begins."""
COMPACTED = "newest"
"""A stream with the same messages that keeps the newest record of each key."""
_ADDED = (b"copied-", b"nats-", b"liftlog-")
_CONTROL = (b"Nats-Msg-Id", b"Liftlog-Key", b"Liftlog-Tombstone")


class Found(NamedTuple):
    tail: str
    key: bytes | None
    value: bytes | None
    lines: Sequence[HeaderLine]


class World(NamedTuple):
    """The test servers: `nats` has the daemon, `other` has only JetStream."""

    nats: NatsServer
    other: NatsServer
    daemon: Daemon
    cli: Cli
    directory: Path
    sent: Sequence[Hostile]

    def target(self, name: str) -> str:
        """Create a new stream for copies."""
        self.cli.ok("stream", "create", name, "--subject", f"{name}.>")
        return name

    def records(self, stream: str = SOURCE, **options: Any) -> list[Record]:
        with connect_sync(self.daemon.pull_address) as client:
            return list(client.read(stream, until="end", **options))

    def again(self) -> list[Record]:
        """Return the records that have room for the headers that a copy adds."""
        return [
            record
            for record, sent in zip(self.records(), self.sent, strict=True)
            if not sent.is_near_a_limit
        ]


class Way(NamedTuple):
    """A path. `takes` selects the messages that it supports. `keeps` returns the expected
    result."""

    name: str
    walk: Callable[[World], Iterable[Found]]
    takes: Callable[[Hostile], bool]
    keeps: Callable[[Hostile], Found]


WAYS: dict[str, Way] = {}


def whole(sent: Hostile) -> Found:
    value = None if sent.is_tombstone else sent.value
    return Found(sent.tail, sent.key, value, sent.all_lines)


def copied(sent: Hostile) -> Found:
    """Return the expected result without headers that would take effect again."""
    found = whole(sent)
    return found._replace(lines=_not_added(found.lines))


def not_near(sent: Hostile) -> bool:
    return not sent.is_near_a_limit


def way(
    name: str,
    takes: Callable[[Hostile], bool] = lambda _: True,
    keeps: Callable[[Hostile], Found] = whole,
) -> Callable[[Callable[[World], Iterable[Found]]], Callable[[World], Iterable[Found]]]:
    def note(walk: Callable[[World], Iterable[Found]]) -> Callable[[World], Iterable[Found]]:
        assert name not in WAYS
        WAYS[name] = Way(name, walk, takes, keeps)
        return walk

    return note


def round_trip(world: World, name: str) -> int:
    """Return the number of messages that arrived unchanged."""
    chosen = WAYS[name]
    wanted = [chosen.keeps(sent) for sent in world.sent if chosen.takes(sent)]
    found = list(chosen.walk(world))
    for number, (one, expected) in enumerate(zip(found, wanted, strict=False)):
        assert one == expected, f"message {number} after {name}"
    assert len(found) == len(wanted), name
    return len(found)


def _tail(subject: str) -> str:
    return subject.partition(".")[2]


def _of_record(record: Record) -> Found:
    lines = header_lines(record.raw_headers)
    return Found(_tail(record.subject), record.key, record.value, lines)


def _not_added(lines: Sequence[HeaderLine]) -> list[HeaderLine]:
    return [line for line in lines if not line[0].lower().startswith(_ADDED)]


def _copies(world: World, stream: str) -> list[Found]:
    found = map(_of_record, world.records(stream))
    return [one._replace(lines=_not_added(one.lines)) for one in found]


def _of_object(row: dict[str, Any]) -> Found:
    """Read a JSON object as a program would."""

    def bytes_of(name: str) -> bytes | None:
        text = row[name]
        if row.get(f"{name}_encoding") == "base64":
            return base64.b64decode(text)
        return None if text is None else str(text).encode()

    return Found(_tail(row["subject"]), bytes_of("key"), bytes_of("value"), lines_of_json(row))


# --- reading ---


@way("read")
def _read(world: World) -> Iterable[Found]:
    found = world.records()
    for record, sent in zip(found, world.sent, strict=True):
        assert record.raw_headers == sent.block  # verbatim
        assert record.headers.lines == sent.all_lines
    return map(_of_record, found)


@way("read, filtered")
def _read_filtered(world: World) -> Iterable[Found]:
    """Read with a filter, so that the daemon encodes the batches again."""
    return map(_of_record, world.records(filter=Filter(subject=f"{SOURCE}.>")))


@way("read, compressed")
def _read_compressed(world: World) -> Iterable[Found]:
    return map(_of_record, world.records("packed"))


@way("read, compacted")
def _read_compacted(world: World) -> Iterable[Found]:
    """Read a compacted stream, in which the remaining records were written to new batches."""
    world.cli.ok("stream", "compact", COMPACTED, "--wait")
    left = {record.offset: record for record in world.records(COMPACTED)}
    newest = {sent.key: offset for offset, sent in enumerate(world.sent, 1)}
    gone = 0
    for offset, sent in enumerate(world.sent, 1):
        if sent.key is None or newest[sent.key] == offset:
            yield _of_record(left[offset])
        else:
            gone += offset not in left
            yield whole(sent)
    assert gone > 0


@way("a worker")
def _work(world: World) -> Iterable[Found]:
    return _worked(world)


@way("a worker, filtered")
def _work_filtered(world: World) -> Iterable[Found]:
    """Receive messages with a filter, so that the daemon encodes the batches again."""
    return _worked(world, filters=[f"{SOURCE}.>"])


def _worked(world: World, **options: Any) -> list[Found]:
    found: list[Found] = []
    name = f"worker-{len(options)}"
    with (
        connect_sync(world.daemon.pull_address) as client,
        client.worker(SOURCE, name, **options) as worker,
    ):
        while len(found) < len(world.sent):
            batch = next(worker)
            found += [_of_record(message.record) for message in batch]
            worker.ack(batch)
    return found


@way("read with asyncio, as Arrow")
def _read_arrow(world: World) -> Iterable[Found]:
    async def read_all() -> list[Found]:
        found = []
        async with connect(world.daemon.pull_address) as client:
            async for batch in client.read_batches(SOURCE, until="end"):
                for row in batch.to_arrow().to_pylist():
                    lines = header_lines(row["headers"])
                    found.append(Found(_tail(row["subject"]), row["key"], row["value"], lines))
        return found

    return asyncio.run(read_all())


def _consume(style: str) -> Callable[[World], Iterable[Found]]:
    def walk(world: World) -> Iterable[Found]:
        shown = world.cli.ok("consume", SOURCE, "--until-end", "-o", style)
        if style == "jsonl":
            return [_of_object(json.loads(line)) for line in shown.splitlines()]
        if style == "yaml":
            return map(_of_object, yaml.load(shown, yaml.CSafeLoader))
        return map(_of_object, json.loads(shown))

    return walk


for _style in ("json", "jsonl", "yaml"):
    way(f"consume -o {_style}")(_consume(_style))


@way("consume --exec")
def _exec(world: World) -> Iterable[Found]:
    kept = world.directory / "kept"
    words = ("consume", SOURCE, "--group", "exec", "--from", "earliest", "-n", str(len(world.sent)))
    world.cli.ok(*words, "-o", "json", "--exec", f"cat >> {kept}")
    lines = kept.read_bytes().splitlines()
    found = [json.loads(line) for line in lines]
    return [_of_object(row) for row in sorted(found, key=lambda row: row["offset"])]


@way("get")
def _get(world: World) -> Iterable[Found]:
    for record in world.records():
        yield _of_object(world.cli.objects("get", SOURCE, str(record.offset))[0])


@way("log dump")
def _dump(world: World) -> Iterable[Found]:
    rows = world.cli.objects("log", "dump", str(world.daemon.data_dir), "--values")
    return [_of_object(row) for row in rows if row["stream"] == SOURCE]


@way("replicas")
def _replicas(world: World) -> Iterable[Found]:
    """Return the records on the disk of each of three nodes."""
    streams = {SOURCE: {"subject": f"{SOURCE}.>", "replicas": 3}}
    with Cluster(world.other.url, streams) as cluster, RawNats(world.other.port) as nats:
        cluster.start()
        cluster.wait_recorded(SOURCE)
        for sent in world.sent:
            answer = nats.request(f"{SOURCE}.{sent.tail}", sent.value, headers=sent.block)
            assert "error" not in answer.json(), (sent, answer)
        cluster.wait_settled(SOURCE)
        cluster.stop()
        copies = []
        for node in cluster.nodes.values():
            rows = world.cli.objects("log", "dump", str(node.data_dir), "--values")
            copies.append([_of_object(row) for row in rows if row["stream"] == SOURCE])
        assert copies[0] == copies[1] == copies[2]
        return copies[0]


@way("backup")
def _backup(world: World) -> Iterable[Found]:
    backup, restored = world.directory / "backup", world.directory / "restored"
    world.cli.ok("backup", "create", str(world.daemon.data_dir), str(backup))
    world.cli.ok("backup", "restore", str(backup), str(restored))
    rows = world.cli.objects("log", "dump", str(restored), "--values")
    return [_of_object(row) for row in rows if row["stream"] == SOURCE]


def _http(world: World, path: str) -> tuple[int, bytes, list[tuple[str, str]]]:
    connection = HTTPConnection(world.daemon.http_address, timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.getheaders()
    finally:
        connection.close()


@way("HTTP GET")
def _http_get(world: World) -> Iterable[Found]:
    for record in world.records():
        path = f"/api/v1/streams/{SOURCE}/records/{record.offset}"
        status, body, _ = _http(world, path)
        assert status == 200
        always = json.loads(_http(world, f"{path}?encoding=base64")[1])
        found = _of_object(json.loads(body))
        assert found == _of_object(always)
        yield found


def _fits_http(sent: Hostile) -> bool:
    """Return True if HTTP header lines can contain the names of the headers, and have room for all
    of them."""
    names = [name.decode("latin-1") for name, _ in sent.lines]
    tokens = all(name.isascii() and name.isprintable() and " " not in name for name in names)
    return tokens and len(sent.block) < 2000


@way("HTTP GET raw", takes=_fits_http)
def _http_get_raw(world: World) -> Iterable[Found]:
    for record, sent in zip(world.records(), world.sent, strict=True):
        path = f"/api/v1/streams/{SOURCE}/records/{record.offset}?format=raw"
        status, body, headers = _http(world, path)
        if not _fits_http(sent):
            assert status in (200, 406), "refused, not changed"
            continue
        assert status == 200, body
        one = {name: urllib.parse.unquote_to_bytes(text) for name, text in headers}
        prefix = "Liftlog-Header-"
        lines = [
            (name.removeprefix(prefix).encode(), urllib.parse.unquote_to_bytes(text))
            for name, text in headers
            if name.startswith(prefix)
        ]
        value = None if "Liftlog-Tombstone" in one else body
        yield Found(_tail(one["Liftlog-Subject"].decode()), one.get("Liftlog-Key"), value, lines)


@way("web page of a record")
def _web(world: World) -> Iterable[Found]:
    for record in world.records():
        path = f"/ui/streams/{SOURCE}/records/{record.offset}"
        status, body, _ = _http(world, f"{path}.json")
        assert (status, _http(world, path)[0]) == (200, 200)
        yield _of_object(json.loads(body)["record"])


@way("web download")
def _download(world: World) -> Iterable[Found]:
    for record, sent in zip(world.records(), world.sent, strict=True):
        path = f"/ui/streams/{SOURCE}/records/{record.offset}/value"
        status, body, _ = _http(world, path)
        assert status == 200
        yield whole(sent)._replace(value=None if sent.is_tombstone else body)


# --- Spark and Arrow ---


def _named(sent: Hostile) -> Found:
    """Return the expected result in Spark, in which names of headers are text."""
    found = whole(sent)
    lines = [(name.decode("utf-8", "replace").encode(), value) for name, value in found.lines]
    return found._replace(lines=lines)


def _of_row(row: dict[str, Any]) -> Found:
    lines = [(one["key"].encode(), one["value"]) for one in row["headers"]]
    return Found(_tail(row["subject"]), row["key"], row["value"], lines)


def _spark(world: World, **place: str) -> Iterable[Found]:
    options = parse_options({"stream": SOURCE, "includeHeaders": "true", **place})
    for wanted in plan(options):
        for batch in read(options, wanted):
            yield from map(_of_row, batch.to_pylist())


@way("Spark over the socket", keeps=_named)
def _spark_socket(world: World) -> Iterable[Found]:
    return _spark(world, server=world.daemon.pull_address.removeprefix("tcp://"))


@way("Spark from files", keeps=_named)
def _spark_files(world: World) -> Iterable[Found]:
    """Return the records of sealed segments. Records of the last segment are not read from
    files."""
    found = list(_spark(world, path=str(world.daemon.data_dir)))
    assert len(found) > len(world.sent) // 2
    return [*found, *map(_named, world.sent[len(found) :])]


@way("export", keeps=_named)
def _export(world: World) -> Iterable[Found]:
    lake = str(world.directory / "lake")
    request = ExportRequest(SOURCE, lake, mode="append")
    server = world.daemon.pull_address.removeprefix("tcp://")
    options = parse_options({"stream": SOURCE, "server": server})
    ExportJob(request, options, LocalEngine, table=open_table(request)).run()
    rows: list[Any] = sorted(rows_of(paths(lake)), key=lambda row: int(str(row["offset"])))
    return map(_of_row, rows)


# --- JetStream's API ---


@way("JetStream: STREAM.MSG.GET", takes=not_near)
def _message_get(world: World) -> Iterable[Found]:
    """Get messages. Messages near the limit have a separate test, because the answer is longer than
    its content."""
    with RawNats(world.nats.port) as nats:
        for record, sent in zip(world.records(), world.sent, strict=True):
            if not not_near(sent):
                continue
            asked = json.dumps({"seq": record.offset})
            found = nats.request(f"$JS.API.STREAM.MSG.GET.{SOURCE}", asked).json()["message"]
            lines = header_lines(base64.b64decode(found.get("hdrs", "")))
            value = base64.b64decode(found.get("data", ""))
            yield whole(sent)._replace(
                tail=_tail(found["subject"]),
                value=None if sent.is_tombstone and not value else value,
                lines=lines,
            )


@way("JetStream: DIRECT.GET", takes=not_near)
def _direct_get(world: World) -> Iterable[Found]:
    """Get one record at a time. The record's own position headers come last, whatever headers the
    record contains."""
    own = [b"Nats-Stream", b"Nats-Subject", b"Nats-Sequence"]
    with RawNats(world.nats.port) as nats:
        for record, sent in zip(world.records(), world.sent, strict=True):
            if not not_near(sent):
                continue
            asked = json.dumps({"seq": record.offset})
            message = nats.request(f"$JS.API.DIRECT.GET.{SOURCE}", asked)
            *lines, place, subject, number, _ = header_lines(message.headers)
            added = [place, subject, number]
            assert [name for name, _ in added] == own
            assert [value for _, value in added] == [
                SOURCE.encode(), record.subject.encode(), b"%d" % record.offset,
            ]  # fmt: skip
            value = message.payload
            yield whole(sent)._replace(
                tail=_tail(subject[1].decode()),
                value=None if sent.is_tombstone and not value else value,
                lines=lines,
            )


@way("JetStream: a consumer")
def _consumer(world: World) -> Iterable[Found]:
    with RawNats(world.nats.port) as nats:
        config = {"deliver_policy": "all", "ack_policy": "none"}
        asked = json.dumps({"stream_name": SOURCE, "config": config})
        made = nats.request(f"$JS.API.CONSUMER.CREATE.{SOURCE}", asked).json()
        assert "error" not in made, made
        next_one = f"$JS.API.CONSUMER.MSG.NEXT.{SOURCE}.{made['name']}"
        for sent in world.sent:
            nats.pub(next_one, b'{"batch":1}', reply=nats.new_reply())
            message = nats.next_message()  # it has the subject of the record
            yield whole(sent)._replace(
                tail=_tail(message.subject.decode()),
                value=None if sent.is_tombstone and not message.payload else message.payload,
                lines=header_lines(message.headers),
            )


# --- published again ---


@way("import jetstream", takes=not_near, keeps=lambda sent: _without_key(copied(sent)))
def _import_jetstream(world: World) -> Iterable[Found]:
    """Import the same messages from JetStream, without headers that only have an effect there."""
    with RawNats(world.other.port) as nats:
        config = {"name": "old", "subjects": ["js.>"], "storage": "memory"}
        nats.request("$JS.API.STREAM.CREATE.old", json.dumps(config))
        for sent in world.sent:
            if not_near(sent):
                answer = nats.request(f"js.{sent.tail}", sent.value, headers=sent.block)
                assert "error" not in answer.json(), (sent, answer)
    target = world.target("js")
    world.cli.ok("import", "jetstream", "old", target, "--source-nats", world.other.url)
    return _copies(world, target)


def _without_key(found: Found) -> Found:
    return found._replace(key=None, value=found.value or b"")


def _lines(world: World) -> bytes:
    """Return the records that have room for more headers, in the form in which the command prints
    them."""
    shown = world.cli.ok("consume", SOURCE, "--until-end", "-o", "jsonl")
    pairs = zip(shown.splitlines(), world.sent, strict=True)
    return "".join(f"{line}\n" for line, sent in pairs if not_near(sent)).encode()


def _moved(target: str, lines: bytes) -> bytes:
    rows = [json.loads(line) for line in lines.splitlines()]
    for row in rows:
        row["subject"] = f"{target}.{_tail(row['subject'])}"
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


@way("import jsonl --form records", takes=not_near, keeps=copied)
def _import_records(world: World) -> Iterable[Found]:
    target = world.target("recorded")
    moved = _moved(target, _lines(world))
    world.cli.ok("import", "jsonl", target, "-", "--form", "records", stdin=moved)
    return _copies(world, target)


@way("import jsonl --form records --subject --key --value", takes=not_near, keeps=copied)
def _import_chosen(world: World) -> Iterable[Found]:
    """Import with options that select parts of a record."""
    target = world.target("chosen")
    words = ("import", "jsonl", target, "-", "--form", "records", "--value", "value")
    done = world.cli(*words, "--subject", f"{target}.{{{{.subject}}}}", stdin=_lines(world))
    assert done.exit_code == 0, done.output
    return [one._replace(tail=_tail(one.tail)) for one in _copies(world, target)]


@way("import jsonl --form copied", takes=not_near, keeps=copied)
def _import_copied(world: World) -> Iterable[Found]:
    target = world.target("lines")
    rows = []
    for number, sent in enumerate(filter(not_near, world.sent), 1):
        row: dict[str, Any] = {"sequence": number, "subject": f"{target}.{sent.tail}"}
        row["value"] = None if sent.is_tombstone else base64.b64encode(sent.value).decode()
        row["key"] = None if sent.key is None else base64.b64encode(sent.key).decode()
        row["headers_base64"] = base64.b64encode(sent.block).decode()
        rows.append(json.dumps(row))
    stdin = "\n".join(rows).encode()
    world.cli.ok("import", "jsonl", target, "-", "--form", "copied", stdin=stdin)
    return _copies(world, target)


@way("import parquet", takes=not_near, keeps=lambda sent: Found("x", None, sent.value, []))
def _import_parquet(world: World) -> Iterable[Found]:
    """Import the values from Parquet, in which a row has no headers."""
    import pyarrow as pa
    from pyarrow.parquet import write_table

    target, file = world.target("rows"), world.directory / "rows.parquet"
    values = [sent.value for sent in world.sent if not_near(sent)]
    write_table(pa.table({"payload": pa.array(values, pa.binary())}), file)
    words = ("import", "parquet", target, str(file), "-s", f"{target}.x", "--value", "payload")
    world.cli.ok(*words)
    return _copies(world, target)


def _published(sent: Hostile) -> Found:
    """Return the expected result of a publisher, whose own headers come after the others."""
    found = whole(sent)
    return found._replace(lines=_control_last(found.lines))


def _control_last(lines: Sequence[HeaderLine]) -> list[HeaderLine]:
    asking = [line for line in lines if line[0] in _CONTROL]
    return [line for line in lines if line[0] not in _CONTROL] + sorted(asking)


def _again(world: World, target: str) -> Iterable[Found]:
    for one in map(_of_record, world.records(target)):
        yield one._replace(lines=_control_last(one.lines))


@way("Publisher", takes=not_near, keeps=lambda sent: _key_aside(_published(sent)))
def _publisher(world: World) -> Iterable[Found]:
    return [_key_aside(one) for one in _publish_again(world, world.target("again"), False)]


@way("Publisher with envelopes", takes=not_near, keeps=lambda sent: _key_aside(_published(sent)))
def _enveloped(world: World) -> Iterable[Found]:
    return [_key_aside(one) for one in _publish_again(world, world.target("wrapped"), True)]


def _key_aside(found: Found) -> Found:
    """Return the result without the fields that have a place in an envelope."""
    lines = [line for line in found.lines if line[0] not in _CONTROL[1:]]
    return found._replace(lines=lines)


def _publish_again(world: World, target: str, use_envelope: bool) -> Iterable[Found]:
    async def publish() -> None:
        options: Any = {"expect": [target], "retry_for": 0, "use_envelope": use_envelope}
        async with Publisher(world.nats.url, **options) as publisher:
            for record in world.again():
                subject = f"{target}.{_tail(record.subject)}"
                headers = [line for line in record.headers.lines if line[0] not in _CONTROL[1:]]
                await publisher.publish(subject, record.value, key=record.key, headers=headers)

    asyncio.run(publish())
    return _again(world, target)


@way("SyncPublisher", takes=not_near, keeps=_published)
def _sync_publisher(world: World) -> Iterable[Found]:
    """Publish with the headers of a record, all of which are published."""
    target = world.target("sync")
    with SyncPublisher(world.nats.url, expect=[target], retry_for=0) as publisher:
        for record in world.again():
            subject = f"{target}.{_tail(record.subject)}"
            publisher.publish(subject, record.value, key=record.key, headers=record.headers)
    return _again(world, target)


@way("pub", takes=lambda sent: sent.is_text and _is_word(sent), keeps=_published)
def _pub(world: World) -> Iterable[Found]:
    target = world.target("typed")
    for record, sent in zip(world.records(), world.sent, strict=True):
        if not (sent.is_text and _is_word(sent)):
            continue
        words = [f"{target}.{sent.tail}"]
        words += ["--tombstone"] if sent.is_tombstone else [(record.value or b"").decode()]
        for name, value in sent.lines:
            words += ["-H", f"{name.decode()}:{value.decode()}"]
        words += [] if sent.key is None else ["--key", sent.key.decode()]
        words += ["--msg-id", sent.message_id] if sent.message_id else []
        world.cli.ok("pub", *words)
    return _again(world, target)


def _is_word(sent: Hostile) -> bool:
    """Return True if a command line can contain the value, and the value is not a placeholder for
    lines."""
    return sent.value.isalnum() and sent.value.isascii()


def _posted(sent: Hostile) -> bool:
    """Return True if the API accepts the subject. It refuses subjects that look like patterns."""
    return not_near(sent) and ">" not in sent.tail and "*" not in sent.tail


@way("HTTP POST", takes=_posted, keeps=_published)
def _http_post(world: World) -> Iterable[Found]:
    target = world.target("posted")
    for record, sent in zip(world.records(), world.sent, strict=True):
        if not _posted(sent):
            continue
        path = f"/api/v1/streams/{SOURCE}/records/{record.offset}?encoding=base64"
        row = json.loads(_http(world, path)[1])
        wanted = ("key", "key_encoding", "value", "value_encoding", "headers_base64")
        message = {name: row[name] for name in wanted if name in row}
        message["subject"] = f"{target}.{_tail(row['subject'])}"
        _post(world, f"/api/v1/streams/{target}/records", json.dumps(message).encode(), {})
    return _again(world, target)


def _posted_raw(sent: Hostile) -> bool:
    return sent.is_text and _fits_http(sent) and _posted(sent)


@way("HTTP POST raw", takes=_posted_raw, keeps=_published)
def _http_post_raw(world: World) -> Iterable[Found]:
    target = world.target("raw")
    for record, sent in zip(world.records(), world.sent, strict=True):
        if not _posted_raw(sent):
            continue
        path = f"/api/v1/streams/{SOURCE}/records/{record.offset}?format=raw"
        _, body, shown = _http(world, path)
        headers = [pair for pair in shown if pair[0].startswith("Liftlog-Header-")]
        headers += [pair for pair in shown if pair[0] in ("Liftlog-Key", "Liftlog-Tombstone")]
        headers.append(("Liftlog-Subject", urllib.parse.quote(f"{target}.{sent.tail}")))
        _post(world, f"/api/v1/streams/{target}/records", body, headers)
    return _again(world, target)


def _post(world: World, path: str, body: bytes, headers: Any) -> None:
    connection = HTTPConnection(world.daemon.http_address, timeout=30)
    try:
        connection.putrequest("POST", path)
        media = "application/octet-stream" if headers else "application/json"
        for name, text in [("Content-Type", media), ("Content-Length", str(len(body))), *headers]:
            connection.putheader(name, text)
        connection.endheaders(body)
        answer = connection.getresponse()
        assert answer.status in (200, 201), answer.read()
    finally:
        connection.close()


# --- dead letters ---


def _lettered(sent: Hostile) -> Found:
    """Return the expected dead letter. The subject is in a header, and a tombstone has an empty
    value."""
    found = whole(sent)
    dropped = (b"nats-", b"liftlog-dead-")
    lines = [line for line in found.lines if not line[0].lower().startswith(dropped)]
    lines = [line for line in lines if line[0] not in _CONTROL]
    return found._replace(value=found.value or b"", lines=lines)


def _letters(world: World, stream: str) -> Iterable[Found]:
    """Return the dead letters. A letter near a limit may lack parts, but must name them."""
    letters = [one for one in world.records(stream) if one.subject == stream]
    letters.sort(key=lambda one: int(one.headers["Liftlog-Dead-Offset"]))
    for letter, sent in zip(letters, world.sent, strict=True):
        if sent.is_near_a_limit:
            left_out = letter.headers.get("Liftlog-Dead-Left-Out", "")
            assert left_out or letter.value == sent.value
            continue
        assert "Liftlog-Dead-Left-Out" not in letter.headers
        last = letter.headers.get_all("Liftlog-Dead-Subject")[-1]
        found = _of_record(letter)
        lines = [line for line in found.lines if not line[0].startswith(b"Liftlog-Dead-")]
        lines = [line for line in lines if line[0] not in _CONTROL]
        yield found._replace(tail=_tail(last), lines=lines)


class _Wrong(Exception):
    """The problem of each record."""


@way("DeadLetters", takes=not_near, keeps=_lettered)
def _dead(world: World) -> Iterable[Found]:
    world.cli.ok("stream", "create", "dead", "--subject", "dead")

    async def fail(_: Record) -> None:
        raise _Wrong

    async def run() -> None:
        async with (
            Publisher(world.nats.url) as publisher,
            connect(world.daemon.pull_address) as client,
            client.consumer("dead", SOURCE, start="earliest", until="end") as records,
        ):
            letters = DeadLetters(publisher, "dead", expect=["dead"], retries=0)
            await letters.run(records, fail)

    asyncio.run(run())
    return _letters(world, "dead")


@way("SyncDeadLetters", takes=not_near, keeps=_lettered)
def _dead_sync(world: World) -> Iterable[Found]:
    world.cli.ok("stream", "create", "deadsync", "--subject", "deadsync")

    def fail(_: Record) -> None:
        raise _Wrong

    with (
        SyncPublisher(world.nats.url) as publisher,
        connect_sync(world.daemon.pull_address) as client,
        client.consumer("deadsync", SOURCE, start="earliest", until="end") as records,
    ):
        SyncDeadLetters(publisher, "deadsync", expect=["deadsync"], retries=0).run(records, fail)
    return _letters(world, "deadsync")


@way("consume --dead-letter", takes=not_near, keeps=_lettered)
def _dead_command(world: World) -> Iterable[Found]:
    world.cli.ok("stream", "create", "deadexec", "--subject", "deadexec")
    words = ("consume", SOURCE, "--group", "deadexec", "--from", "earliest")
    words += ("-n", str(len(world.sent)))
    world.cli.ok(*words, "--exec", "false", "--dead-letter", "deadexec", "--retries", "0")
    return _letters(world, "deadexec")
