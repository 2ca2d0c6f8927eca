"""JetStream's clients manage streams of the daemon over `$JS.API`."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js import JetStreamContext
from nats.js.api import StreamConfig
from nats.js.errors import APIError, BadRequestError, NotFoundError, ServerError
from support.clients.ingesting import assert_no_traceback, publish, until
from support.clients.raw_nats import RawNats, pub_frame
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from liftlog import __version__
from liftlog.client import connect_sync
from liftlog.errors import InvalidArgument

pytestmark = pytest.mark.integration

FLOOD = 20_000
SETTINGS: dict[str, Any] = {
    "nats": {"jetstream_api": True},
    "streams": {"configured": {"subject": "configured.>"}},
}


@pytest.fixture(scope="module")
def daemon(server: NatsServer) -> Iterator[Daemon]:
    with Daemon(server.url, SETTINGS) as daemon:
        with RawNats(server.port) as raw:
            until(lambda: raw.request("$JS.API.INFO", b"").payload != b"")
        yield daemon
        assert_no_traceback(daemon)


@pytest.fixture
async def js(server: NatsServer, daemon: Daemon) -> AsyncIterator[JetStreamContext]:
    client = await nats.connect(server.url)
    try:
        yield client.jetstream()
    finally:
        await client.close()


async def test_the_account_has_streams(js: JetStreamContext) -> None:
    info = await js.account_info()
    assert info.streams >= 1
    assert info.limits.max_streams == -1


def requests(daemon: Daemon, method: str, result: str) -> float:
    try:
        return daemon.metric("liftlog_jetstream_api_requests_total", method=method, result=result)
    except KeyError:
        return 0


async def test_requests_are_counted(js: JetStreamContext, daemon: Daemon) -> None:
    def count(method: str, result: str) -> float:
        return requests(daemon, method, result)

    before = (await js.account_info()).api
    known, missing = count("STREAM.INFO", "ok"), count("STREAM.INFO", "refused")
    await js.stream_info("configured")
    with pytest.raises(NotFoundError):
        await js.stream_info("missing")
    until(lambda: count("STREAM.INFO", "refused") == missing + 1)
    assert count("STREAM.INFO", "ok") == known + 1
    after = (await js.account_info()).api
    assert (after.total - before.total, after.errors - before.errors) == (3, 1)
    assert daemon.metric("liftlog_jetstream_api_seconds_count") >= 4
    assert daemon.metric("liftlog_jetstream_consumers") == 0


async def test_a_stream_is_described_with_the_sequences_of_its_acks(js: JetStreamContext) -> None:
    before = await js.stream_info("configured")
    assert before.config.subjects == ["configured.>"]
    acks = [await js.publish("configured.a", b"12345") for _ in range(3)]
    info = await js.stream_info("configured")
    assert info.state.last_seq == acks[-1].seq
    assert info.state.messages == before.state.messages + 3


async def test_a_stream_that_does_not_exist_is_not_found(js: JetStreamContext) -> None:
    with pytest.raises(NotFoundError) as refusal:
        await js.stream_info("missing")
    assert refusal.value.err_code == 10059


async def test_the_life_of_a_stream(js: JetStreamContext) -> None:
    config = StreamConfig(
        name="life", subjects=["life.>"], max_msgs=100, max_age=3600, metadata={"owner": "me"}
    )
    assert (await js.add_stream(config)).did_create
    again = await js.add_stream(config)
    assert not again.did_create
    assert own_metadata(again.config) == {"owner": "me"}
    with pytest.raises(BadRequestError) as refusal:
        await js.add_stream(config, max_msgs=99)
    assert refusal.value.err_code == 10058

    changed = await js.update_stream(config, max_msgs=50, metadata={"team": "us"})
    assert (changed.config.max_msgs, own_metadata(changed.config)) == (50, {"team": "us"})
    assert changed.created == again.created

    assert await js.find_stream_name_by_subject("life.1") == "life"
    assert "life" in {info.config.name for info in await js.streams_info()}
    assert await js.delete_stream("life")
    with pytest.raises(NotFoundError):
        await js.delete_stream("life")


async def test_answers_have_the_levels_of_the_api_in_the_metadata_of_streams(
    js: JetStreamContext, daemon: Daemon
) -> None:
    """As in JetStream since 2.11. Clients send back what they have read; it is not stored."""
    made = await js.add_stream(StreamConfig(name="levels", subjects=["levels"]))
    levels = {"_nats.level": "2", "_nats.req.level": "0", "_nats.ver": __version__}
    assert made.config.metadata == levels
    old = {**levels, "_nats.ver": "0.0.1"}
    same = await js.add_stream(StreamConfig(name="levels", subjects=["levels"], metadata=old))
    assert not same.did_create
    assert same.config.metadata == levels
    changed = await js.update_stream(made.config, metadata={**old, "team": "us"})
    assert changed.config.metadata == {**levels, "team": "us"}
    with connect_sync(daemon.pull_address) as client:
        assert client.describe_stream("levels").settings["jetstream"]["metadata"] == {"team": "us"}


def own_metadata(config: StreamConfig) -> dict[str, str]:
    """Without the levels of the API."""
    found = config.metadata or {}
    return {key: value for key, value in found.items() if not key.startswith("_nats.")}


async def test_a_purge_leaves_what_it_was_told_to(js: JetStreamContext) -> None:
    await js.add_stream(name="purged", subjects=["purged.>"])
    for _ in range(10):
        await js.publish("purged.a", b"x")
    for arguments, first, messages in (
        ({"seq": 4}, 4, 7),
        ({"keep": 3}, 8, 3),
        ({"keep": 5}, 8, 3),
        ({"subject": "purged.>"}, 11, 0),
        ({}, 11, 0),
    ):
        assert await js.purge_stream("purged", **arguments)
        state = (await js.stream_info("purged")).state
        assert (state.first_seq, state.last_seq, state.messages) == (first, 10, messages)
    for subject in ("purged.a", "purged.b", "purged.a"):
        await js.publish(subject, b"x")
    assert await js.purge_stream("purged", subject="purged.a")
    state = (await js.stream_info("purged", "purged.>")).state
    assert (state.first_seq, state.last_seq, state.subjects) == (12, 13, {"purged.b": 1})
    await js.update_stream(name="purged", subjects=["purged.>"], deny_purge=True)
    with pytest.raises(ServerError) as refusal:
        await js.purge_stream("purged")
    assert refusal.value.err_code == 10110


async def test_two_streams_do_not_ack_the_same_messages(js: JetStreamContext) -> None:
    with pytest.raises(BadRequestError) as refusal:
        await js.add_stream(name="second", subjects=["configured.a"])
    assert refusal.value.err_code == 10065
    await js.add_stream(name="witness", subjects=["configured.a"], no_ack=True)
    assert await js.delete_stream("witness")


async def test_a_stream_of_the_configuration_file_stays(js: JetStreamContext) -> None:
    with pytest.raises(ServerError) as refusal:
        await js.delete_stream("configured")
    assert refusal.value.err_code == 10050
    with pytest.raises(ServerError) as refusal:
        await js.update_stream(name="configured", subjects=["configured.>"], max_msgs=5)
    assert refusal.value.err_code == 10069


async def test_a_deleted_message_is_gone_for_every_client(
    js: JetStreamContext, daemon: Daemon
) -> None:
    await js.add_stream(name="holes", subjects=["holes"])
    for _ in range(3):
        await js.publish("holes", b"x")
    assert await js.delete_msg("holes", 2)
    with pytest.raises(NotFoundError):
        await js.get_msg("holes", 2)
    with connect_sync(daemon.pull_address) as client:
        assert [one.offset for one in client.read("holes", until="end")] == [1, 3]


async def test_each_new_stream_asks_once_who_else_acks_its_subject(
    js: JetStreamContext, daemon: Daemon
) -> None:
    """Not once for each stream that is there: the daemon itself answers, or no one."""
    before, count = requests(daemon, "STREAM.NAMES", "ok"), 30
    for number in range(count):
        await js.add_stream(name=f"asks-{number}", subjects=[f"asks.{number}"])
    for number in range(count):
        await js.delete_stream(f"asks-{number}")
    assert requests(daemon, "STREAM.NAMES", "ok") - before <= 2 * count


def test_a_list_that_is_too_long_for_one_message_has_pages() -> None:
    names = [f"page-{number:03}" for number in range(30)]
    settings = SETTINGS | {"streams": {name: {"subject": f"page.{name}"} for name in names}}
    with NatsServer(max_payload=8192) as server, Daemon(server.url, settings):
        with RawNats(server.port) as raw:
            until(lambda: raw.request("$JS.API.INFO", b"").payload != b"")
            found: list[str] = []
            pages = 0
            while len(found) < len(names):
                question = json.dumps({"subject": "page.*", "offset": len(found)})
                answer = json.loads(raw.request("$JS.API.STREAM.LIST", question).payload)
                assert (answer["offset"], answer["total"]) == (len(found), len(names))
                assert answer["streams"]
                found += [one["config"]["name"] for one in answer["streams"]]
                pages += 1
            beyond = json.loads(raw.request("$JS.API.STREAM.NAMES", b'{"offset": 29}').payload)
            _subjects_in_pages(raw)
    assert found == names
    assert pages > 1
    assert beyond["streams"] == names[29:]


def _subjects_in_pages(raw: RawNats) -> None:
    """As nats.js asks: the limit of the first page, times the number of the page."""
    config = b'{"name": "many", "subjects": ["many.>"]}'
    assert b'"error"' not in raw.request("$JS.API.STREAM.CREATE.many", config).payload
    subjects = {f"many.{'x' * (number % 50)}{number}" for number in range(1000)}
    raw.send(b"".join(pub_frame(subject, b"") for subject in sorted(subjects)[1:]))
    assert b'"error"' not in raw.request(min(subjects), b"").payload
    found: set[str] = set()
    limit = pages = 0
    while pages == 0 or pages * limit < len(subjects):
        question = json.dumps({"subjects_filter": ">", "offset": pages * limit})
        answer = raw.request("$JS.API.STREAM.INFO.many", question).json()
        assert answer["total"] == len(subjects)
        limit = limit or answer["limit"]
        found |= set(answer["state"]["subjects"])
        pages += 1
    assert found == subjects
    assert pages > 1


@pytest.mark.parametrize(
    ("subject", "payload", "err_code"),
    [
        ("STREAM.INVENTED", b"", 10003),
        ("STREAM.INFO", b"", 10003),
        ("STREAM.INFO.a.b", b"", 10003),
        ("STREAM.INFO.configured", b"[1]", 10025),
        ("STREAM.INFO.configured", b"{", 10025),
        ("STREAM.INFO.configured", b"[" * 100_000, 10025),
        ("STREAM.CREATE.x", b"", 10025),
        ("STREAM.CREATE.x", b'{"name": "y"}', 10056),
        ("STREAM.CREATE.x", b'{"name": "x", "max_age": NaN}', 10025),
        ("STREAM.CREATE.x\xff", b'{"name": "x"}', 10052),
        ("STREAM.DELETE.configured", b"x", 10038),
        ("STREAM.PURGE.configured", b'{"seq": -1}', 10025),
        ("STREAM.PURGE.configured", b'{"seq": 1, "keep": 1}', 10003),
        ("STREAM.PURGE.missing", b"", 10059),
        ("STREAM.DELETE._offsets", b"", 10052),
        ("STREAM.NAMES", b'{"subject": "a..b"}', 10003),
        ("STREAM.NAMES", b'{"offset": 1.5}', 10025),
        ("STREAM.SNAPSHOT.configured", b"", 10052),
    ],
)
def test_what_is_wrong_is_refused(
    server: NatsServer, daemon: Daemon, subject: str, payload: bytes, err_code: int
) -> None:
    with RawNats(server.port) as raw:
        answer = json.loads(raw.request(f"$JS.API.{subject}".encode("latin-1"), payload).payload)
    assert answer["type"].startswith("io.nats.jetstream.api.v1.")
    assert answer["error"]["err_code"] == err_code


def test_one_client_that_floods_delays_no_ack(server: NatsServer, daemon: Daemon) -> None:
    disconnects = daemon.metric("liftlog_nats_disconnects_total")
    with RawNats(server.port, timeout=60) as flooder, RawNats(server.port, timeout=60) as calm:
        publish(calm, "configured.a", b"x")
        daemon.reset_peak_rss()
        before = daemon.rss_bytes
        requests = [
            b"PUB $JS.API.STREAM.LIST _INBOX.flood.%d 0\r\n\r\n" % number for number in range(FLOOD)
        ]
        flooder.sub("_INBOX.flood.*")
        flooder.send(b"".join(requests))
        for _ in range(50):
            assert "error" not in publish(calm, "configured.a", b"x")
        until(lambda: b"account_info" in calm.request("$JS.API.INFO", b"").payload)
    assert daemon.peak_rss_bytes - before < 64 << 20
    assert daemon.metric("liftlog_nats_disconnects_total") == disconnects


FLOODER = """
import socket, sys, threading
link = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
link.sendall(b'CONNECT {"verbose":false}\\r\\nSUB _INBOX.flood.* 1\\r\\n')
def read():
    while data := link.recv(1 << 20):
        if b"PING\\r\\n" in data:
            link.sendall(b"PONG\\r\\n")
threading.Thread(target=read, daemon=True).start()
block = b"PUB $JS.API.STREAM.LIST _INBOX.flood.1 0\\r\\n\\r\\n" * 200
while True:
    link.sendall(block)
"""


@pytest.mark.long
def test_while_a_client_floods_acks_are_delayed_by_a_bounded_time(
    server: NatsServer, daemon: Daemon
) -> None:
    """With a flood on the connection on which messages come, an ack took 1400 times as long."""

    def ack_seconds(calm: RawNats, count: int) -> float:
        taken = []
        for _ in range(count):
            began = time.perf_counter()
            assert "error" not in publish(calm, "configured.a", b"x")
            taken.append(time.perf_counter() - began)
        return statistics.median(taken)

    def refused() -> float:
        try:
            return daemon.metric("liftlog_jetstream_api_requests_total", result="too many")
        except KeyError:
            return 0.0

    with RawNats(server.port, timeout=60) as calm:
        alone = ack_seconds(calm, 100)
        flooder = subprocess.Popen([sys.executable, "-c", FLOODER, str(server.port)])
        try:
            before = refused()
            until(lambda: refused() > before + 1000)
            assert ack_seconds(calm, 20) < 400 * alone
        finally:
            flooder.kill()
            flooder.wait()
        # What NATS still holds is refused, too; then others are answered.
        until(lambda: b"account_info" in calm.request("$JS.API.INFO", b"").payload)


def test_nothing_that_is_sent_stops_the_answers(server: NatsServer, daemon: Daemon) -> None:
    """Random subjects and payloads; then an ordinary question."""
    chance = random.Random(7)
    methods = [
        *("INFO", "STREAM.NAMES", "STREAM.LIST", "STREAM.INFO.configured", "STREAM.CREATE.new"),
        *("STREAM.UPDATE.configured", "STREAM.PURGE.missing", "STREAM.MSG.GET.configured"),
        *("STREAM.MSG.DELETE.configured", "DIRECT.GET.configured", "DIRECT.GET.configured.a.>"),
        *("CONSUMER.CREATE.configured", "CONSUMER.MSG.NEXT.configured.x", "STREAM", "A..B"),
    ]
    fields = [
        *("name", "subjects", "seq", "batch", "last_by_subj", "next_by_subj", "multi_last"),
        *("start_time", "up_to_time", "max_bytes", "filter", "keep", "offset", "subject"),
        *("subjects_filter", "deleted_details", "metadata", "max_age", "storage", "config"),
    ]
    values = [
        *(
            None,
            True,
            -1,
            0,
            1,
            2**63,
            2**64,
            1.5,
            1e300,
            "",
            "a",
            "a.>",
            ">",
            "\ud800",
            "\0",
            "*.*",
        ),
        *(
            [],
            [[]],
            [1],
            ["a.>", ">"],
            {},
            {"a": {}},
            "2020-01-01T00:00:00Z",
            "9" * 5000,
            "x" * 9000,
        ),
    ]
    with RawNats(server.port, timeout=60) as raw:
        for _ in range(400):
            body = {
                chance.choice(fields): chance.choice(values) for _ in range(chance.randrange(4))
            }
            payload = json.dumps(body).encode()
            if chance.random() < 0.2:
                payload = payload[: chance.randrange(len(payload) + 1)] + chance.randbytes(3)
            answer = raw.request(f"$JS.API.{chance.choice(methods)}", payload)
            assert answer.payload or answer.headers.startswith(b"NATS/1.0")
        assert b"account_info" in raw.request("$JS.API.INFO", b"").payload


def test_where_jetstream_is_on_the_daemon_is_silent() -> None:
    with NatsServer(jetstream=True) as server, Daemon(server.url, SETTINGS) as daemon:
        until(lambda: "jetstream_api" in json.loads(daemon.get("/readyz")[1])["warnings"])
        with RawNats(server.port) as raw:
            assert b"liftlog" not in raw.request("$JS.API.INFO", b"").payload


async def test_two_updates_at_once_leave_what_one_of_them_asked_for(
    server: NatsServer, daemon: Daemon
) -> None:
    """A history of 5 with the compaction of the other update would lose its older records."""
    longer: dict[str, Any] = {"name": "raced", "subjects": ["raced.>"], "max_msgs_per_subject": 5}
    asked = [longer | {"max_msgs_per_subject": 1}, longer | {"description": "hello"}]
    clients = [await nats.connect(server.url) for _ in asked]
    try:
        await clients[0].request("$JS.API.STREAM.CREATE.raced", json.dumps(longer).encode())
        for _ in range(10):
            answers = await asyncio.gather(
                *(
                    client.request("$JS.API.STREAM.UPDATE.raced", json.dumps(one).encode(), 20)
                    for client, one in zip(clients, asked, strict=True)
                )
            )
            shown = [json.loads(answer.data)["config"] for answer in answers]
            assert [one["max_msgs_per_subject"] for one in shown] == [1, 5]
            with connect_sync(daemon.pull_address) as pull:
                now = pull.describe_stream("raced").settings
                history = now["jetstream"]["max_msgs_per_subject"]
                assert (history, now["compaction"] is not None) in [(1, True), (5, False)]
                if history == 5:
                    with pytest.raises(InvalidArgument, match="expected 1 with compaction"):
                        pull.update_stream("raced", {"compaction": {}})
            await clients[0].request("$JS.API.STREAM.UPDATE.raced", json.dumps(longer).encode())
    finally:
        for client in clients:
            await client.close()


def test_when_jetstream_is_switched_on_the_daemon_falls_silent(tmp_path: Path) -> None:
    with NatsServer() as server, Daemon(server.url, SETTINGS) as daemon:
        until(lambda: "jetstream-api-answers" in daemon.log)
        server.configure(jetstream={"store_dir": str(tmp_path)})
        server.restart()
        until(lambda: "jetstream-api-silent" in daemon.log)
        with RawNats(server.port) as raw:
            for _ in range(20):
                answer = json.loads(raw.request("$JS.API.STREAM.INFO.configured", b"").payload)
                assert answer["error"]["err_code"] == 10059  # JetStream has no such stream
        until(lambda: "jetstream_api" in json.loads(daemon.get("/readyz")[1])["warnings"])


def test_of_two_daemons_one_answers(server: NatsServer, daemon: Daemon) -> None:
    with Daemon(server.url, SETTINGS | {"streams": {}}) as other:
        until(lambda: "jetstream-api-silent" in other.log)
        with RawNats(server.port) as raw:
            for _ in range(20):
                answer = json.loads(raw.request("$JS.API.STREAM.INFO.configured", b"").payload)
                assert "error" not in answer


ACL = """
principals: {local: {unix_uid: 0}}
nats: {allow: [create, read], streams: ["mine*"], attach: ["mine.>"]}
"""


async def test_with_an_acl_only_what_its_section_nats_allows(tmp_path: Path) -> None:
    (tmp_path / "acl.yaml").write_text(ACL)
    (tmp_path / "acl.yaml").chmod(0o600)
    streams = {"other": {"subject": "other.>"}}
    settings = SETTINGS | {"acl": {"file": str(tmp_path / "acl.yaml")}, "streams": streams}
    with NatsServer() as server, Daemon(server.url, settings) as daemon:
        with RawNats(server.port) as raw:
            until(lambda: raw.request("$JS.API.INFO", b"").payload != b"")
        client = await nats.connect(server.url)
        js = client.jetstream()
        try:
            assert (await js.account_info()).streams == 0
            assert await js.streams_info() == []
            await js.add_stream(name="mine", subjects=["mine.a"])
            assert (await js.publish("mine.a", b"x")).seq == 1
            assert (await js.get_msg("mine", 1)).data == b"x"
            assert (await js.publish("other.a", b"x")).seq == 1
            for forbidden in (
                js.stream_info("other"),
                js.get_msg("other", 1),
                js.get_msg("other", 1, direct=True),
                js.purge_stream("mine"),
                js.delete_stream("mine"),
                js.add_stream(name="mine2", subjects=["other.b"]),
                js.add_stream(name="yours", subjects=["mine.b"]),
            ):
                with pytest.raises(APIError) as refusal:
                    await forbidden
                assert refusal.value.code == 403
        finally:
            await client.close()
        assert_no_traceback(daemon)
