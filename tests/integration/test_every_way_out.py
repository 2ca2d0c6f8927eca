"""No client has the daemon publish where the client itself may not, with the daemon's own rights.

A NATS user with hardly a permission names other destinations in all requests that have one. Another
client listens there and is the judge: the user may publish to none of these destinations, so
whatever arrives was sent by the daemon. `tests/unit/server/test_every_way_out.py` keeps the list of
the places in the code that publish.
"""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from support.clients.ingesting import assert_no_traceback, publish, until
from support.clients.log_api import Caller
from support.clients.raw_nats import RawMessage, RawNats, header_block
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

import envelope
from acl.tokens import hash_token
from envelope import liftbridge
from envelope.fields import wrong_ack_subject
from liftlog.client import connect_sync
from liftlog.server.jetstream_api.methods import METHODS

pytestmark = pytest.mark.integration

SECOND = 10**9
EVIL = b"chosen by a publisher"
STREAMS = {
    "chat": {"subject": "chat.>"},
    "enveloped": {"subject": "enveloped.>", "acks": "envelope"},
    "orders": {"subject": "orders.>"},
    "bucket": {"subject": "$KV.secret.>"},
}
ACL = """
principals: {{anonymous: {{}}}}
roles: {{all: [{{allow: [create, delete, read, admin], streams: ["*"], attach: [">"]}}]}}
bindings: {{anonymous: [all]}}
nats: {{allow: [read], streams: [{streams}]{deliver}}}
"""
FORBIDDEN = [
    "orders.injected",
    "chat.loop",
    "$KV.secret.key",
    "$JS.API.STREAM.PURGE.orders",
    "$SYS.REQ.SERVER.PING",
    "liftlog.liftlog.offsets.orders.victim",
]
NO_REPLIES = ["$JS.ACK.orders.x.1.1.1.1.1", "_GR_.cluster.server.orders.injected"]
"""NATS itself refuses them as reply subjects."""
SERVICE = "svc.execute"
"""No stream records it, so acks may go there, but no records."""


def configured() -> NatsServer:
    poor = {
        "user": "poor",
        "password": "poor",
        "permissions": {
            "publish": [
                "$JS.API.>", "$JS.ACK.chat.>", "chat.>", "enveloped.>",
                "liftlog.liftlog.offsets.chat.*",
            ],
            "subscribe": ["_INBOX.>", "_INBOX_poor.>"],
        },
    }  # fmt: skip
    rich = {"user": "rich", "password": "rich"}
    return NatsServer(
        leafnodes={"listen": "127.0.0.1:-1"},
        authorization={"users": [poor, rich]},
        no_auth_user="rich",
    )


def serving(server: NatsServer, directory: Path, *, deliver: str = "", **more: Any) -> Daemon:
    found = re.search(r"Listening for leafnode connections on (\S+:\d+)", server.log)
    assert found is not None, server.log
    acl = directory / "acl.yaml"
    given = f", deliver: [{deliver}]" if deliver else ""
    acl.write_text(ACL.format(streams="chat, archive, given", deliver=given))
    acl.chmod(0o640)
    settings: dict[str, Any] = {
        "nats": {
            "jetstream_api": True, "leafnode": found[1], "user": "rich", "password": "rich",
        },
        "streams": STREAMS, "acl": {"file": str(acl)}, "checkpoints": {"over_nats": True},
        "http": {"log_api": True}, **more,
    }  # fmt: skip
    return Daemon(server.url, settings)


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with configured() as server:
        yield server


@pytest.fixture(scope="module")
def daemon(server: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with serving(server, tmp_path_factory.mktemp("acl")) as daemon:
        until(lambda: "jetstream-api-answers" in daemon.log and "leaf-connected" in daemon.log)
        yield daemon
        assert daemon.running
        assert_no_traceback(daemon)


@pytest.fixture
def poor(server: NatsServer) -> Iterator[RawNats]:
    login = {"user": "poor", "pass": "poor"}
    with RawNats(server.port, timeout=30, connect_options=login) as client:
        yield client


class Judge:
    """Listens to all destinations. Interest matters: consumers push to subscribers only."""

    def __init__(self, server: NatsServer, daemon: Daemon) -> None:
        self.raw = RawNats(server.port, timeout=30)
        self._daemon = daemon
        for subject in (*FORBIDDEN, *NO_REPLIES, SERVICE):
            self.raw.sub(subject)
        self.raw.ping()

    def what_came(self) -> list[RawMessage]:
        """Everything up to now, what the daemon has sent before this included."""
        for path in ("orders.last", "chat.last"):  # acks come on the way that all answers take
            publish(self.raw, path, b"")
        found = []
        while not self.raw.no_message():
            found.append(self.raw.next_message())
        return found


@pytest.fixture
def judge(server: NatsServer, daemon: Daemon) -> Iterator[Judge]:
    judge = Judge(server, daemon)
    yield judge
    judge.raw.close()


def asked(raw: RawNats, method: str, body: Any = None) -> Any:
    payload = b"" if body is None else json.dumps(body).encode()
    return raw.request(f"$JS.API.{method}", payload).json()


def consumer(raw: RawNats, stream: str = "chat", **config: Any) -> Any:
    body = {"ack_policy": "none", "inactive_threshold": 60 * SECOND, **config}
    return asked(raw, f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": body})


# --- the ways out: each asks for something that is to be sent to `target` ---


def acks(raw: RawNats, target: str) -> int:
    raw.pub("chat.a", EVIL, reply=target)
    wrong = header_block({"Nats-Expected-Last-Sequence": "999999"})
    raw.hpub("chat.a", wrong, EVIL, reply=target)
    if wrong_ack_subject(target) is None:
        raw.pub("enveloped.a", envelope.encode(EVIL, ack_subject=target))
    asking = liftbridge.Publish(stream="enveloped", value=EVIL, ack_inbox=target)
    raw.pub("enveloped.a", liftbridge.encode_publish(asking), reply=target)
    return 0


def checkpoints(raw: RawNats, target: str) -> int:
    for payload in (b"1", b"nonsense"):
        raw.pub("liftlog.liftlog.offsets.chat.mine", payload, reply=target)
    return 0


def every_method(raw: RawNats, target: str) -> int:
    body = {"name": "chat", "stream_name": "chat", "seq": 1, "batch": 1, "config": {}}
    for method in METHODS.values():
        rest = ["chat", "none"][: max(method.arguments[0], 1)] if method.arguments[1] != 0 else []
        raw.pub(".".join(["$JS.API", method.name, *rest]), json.dumps(body), reply=target)
    raw.pub("$JS.API.NO.SUCH.METHOD", b"", reply=target)
    return len(METHODS) + 1


def gets(raw: RawNats, target: str) -> int:
    wishes: list[dict[str, Any]] = [
        {"seq": 1},
        {"seq": 1, "batch": 10},
        {"multi_last": ["chat.>"]},
        {"last_by_subj": "chat.evil"},
        {"next_by_subj": "chat.>", "start_time": "2020-01-01T00:00:00Z"},
    ]
    for wish in wishes:
        raw.pub("$JS.API.DIRECT.GET.chat", json.dumps(wish), reply=target)
    raw.pub("$JS.API.DIRECT.GET.chat.chat.evil", b"", reply=target)
    raw.pub("$JS.API.STREAM.MSG.GET.chat", b'{"seq": 1}', reply=target)
    return len(wishes) + 2


def pulls(raw: RawNats, target: str, ack_policy: str = "none") -> int:
    name = consumer(raw, ack_policy=ack_policy)["name"]
    wishes: list[dict[str, Any]] = [
        {"batch": 1, "no_wait": True},
        {"batch": 1000, "no_wait": True},
        {"batch": 1, "max_bytes": 1, "no_wait": True},
        {"batch": 1000, "expires": SECOND // 2, "idle_heartbeat": SECOND // 8},
        {"batch": -1, "idle_heartbeat": SECOND},
    ]
    for wish in wishes:
        raw.pub(f"$JS.API.CONSUMER.MSG.NEXT.chat.{name}", json.dumps(wish), reply=target)
    return len(wishes)


def worker_pulls(raw: RawNats, target: str) -> int:
    """They do not count as requests of the API."""
    pulls(raw, target, "explicit")
    raw.ping()
    asked(raw, "INFO")
    return 0


def worker_acks(raw: RawNats, target: str) -> int:
    """A client chooses where the answer to its ack goes, and `+NXT` is a pull as well."""
    name, inbox = consumer(raw, ack_policy="explicit")["name"], raw.new_reply()
    raw.pub(f"$JS.API.CONSUMER.MSG.NEXT.chat.{name}", b"1", reply=inbox)
    while not (delivered := raw.next_message()).reply.startswith(b"$JS.ACK."):
        pass
    wish = b'+NXT {"batch": 1000, "no_wait": true}'
    for body in (b"+WPI", b"-NAK", wish, b"+NXT", b"nonsense", b"+ACK", b"", b"+TERM"):
        raw.pub(delivered.reply, body, reply=target)
    raw.pub("$JS.ACK.chat.none.1.1.1.1.1", b"+ACK", reply=target)
    raw.ping()
    asked(raw, f"CONSUMER.INFO.chat.{name}")
    return 0


def floods(raw: RawNats, target: str) -> int:
    raw.send(b"".join([b"PUB $JS.API.INFO %b 0\r\n\r\n" % target.encode()] * 300))
    return 300


WAYS: list[Callable[[RawNats, str], int]] = [
    acks, checkpoints, every_method, gets, worker_acks, worker_pulls, pulls, floods,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_nothing_goes_where_it_must_not(
    way: Callable[[RawNats, str], int], daemon: Daemon, poor: RawNats, judge: Judge
) -> None:
    publish(poor, "chat.evil", EVIL)
    with connect_sync(daemon.pull_address) as client:
        before = client.describe_stream("orders").high_watermark
        asked(poor, "INFO")
        asks = daemon.metric("liftlog_jetstream_api_requests_total")
        asks += sum(way(poor, target) for target in (*FORBIDDEN, SERVICE))
        poor.ping()
        until(  # every request was looked at
            lambda: daemon.metric("liftlog_jetstream_api_requests_total") >= asks
        )
        came = judge.what_came()
        assert [one for one in came if one.subject.decode() != SERVICE] == []
        for secret in (EVIL, base64.b64encode(EVIL)[:-4]):
            assert [one for one in came if secret in one.payload] == []
        after = client.describe_stream("orders").high_watermark
        assert after == before + 1, "only what the judge published"


@pytest.mark.parametrize("ack_policy", ["none", "explicit", "update"])
@pytest.mark.parametrize("target", [*FORBIDDEN, *NO_REPLIES, SERVICE])
def test_no_consumer_pushes_where_it_must_not(
    target: str, ack_policy: str, daemon: Daemon, poor: RawNats, judge: Judge
) -> None:
    publish(poor, "chat.evil", EVIL)
    if ack_policy == "update":
        config = {"ack_policy": "explicit", "name": "pushed"}
        assert "error" not in consumer(poor, deliver_subject="_INBOX.none", **config)
        error = consumer(poor, deliver_subject=target, **config)["error"]
    else:
        error = consumer(poor, deliver_subject=target, ack_policy=ack_policy)["error"]
    if target == SERVICE:
        assert (error["code"], error["err_code"]) == (403, 10003)
        assert "`deliver` in the section nats" in error["description"]
    elif target.startswith(("$", "liftlog")) and not target.startswith("$KV"):
        assert (error["code"], error["err_code"]) == (400, 10112)
    else:
        assert error["err_code"] in (10081, 10112)
    came = [one for one in judge.what_came() if one.subject.decode() != SERVICE or one.reply]
    assert came == [], "a record has a reply subject"


def test_what_is_asked_for_rightly_arrives(daemon: Daemon, poor: RawNats) -> None:
    """The ways of these tests lead somewhere: to an inbox, each of them brings something."""
    publish(poor, "chat.evil", EVIL)
    for prefix in ("_INBOX.good", "_INBOX_poor.good"):
        for way in WAYS:
            target = f"{prefix}.{way.__name__}"
            poor.sub(target)
            poor.ping()
            way(poor, target)
            while poor.next_message().subject not in (target.encode(), b"chat.evil"):
                pass
    poor.sub("_INBOX.pushed")
    poor.ping()
    made = consumer(poor, deliver_subject="_INBOX.pushed", filter_subject="chat.evil")
    assert "error" not in made
    while poor.next_message().payload != EVIL:
        pass


# --- what changes while a consumer is there ---


def attached(server: NatsServer, directory: Path, **more: Any) -> Daemon:
    return serving(server, directory, deliver='"given.>"', **more)


def test_a_grant_and_its_end(tmp_path: Path) -> None:
    with configured() as server, attached(server, tmp_path) as daemon:
        until(lambda: "jetstream-api-answers" in daemon.log and "leaf-connected" in daemon.log)
        with RawNats(server.port, timeout=30) as raw:
            publish(raw, "chat.evil", EVIL)
            raw.sub("given.*")
            raw.ping()
            pushing = consumer(raw, deliver_subject="given.push")["name"]
            assert raw.next_message().payload == EVIL
            pulling = consumer(raw)["name"]
            raw.pub("$JS.API.DIRECT.GET.chat", b'{"seq": 1}', reply="given.get")
            assert raw.next_message().payload == EVIL
            wish = json.dumps({"batch": 100, "expires": 100 * SECOND})
            raw.pub(f"$JS.API.CONSUMER.MSG.NEXT.chat.{pulling}", wish, reply="given.pull")
            assert raw.next_message().payload == EVIL

            acl = tmp_path / "acl.yaml"
            acl.write_text(acl.read_text().replace("given.>", "other.>"))
            os.kill(daemon.pid, signal.SIGHUP)
            until(lambda: '"event": "reloaded"' in daemon.log)
            publish(raw, "chat.later", EVIL)
            until(lambda: "error" in asked(raw, f"CONSUMER.INFO.chat.{pushing}"))
            raw.pub("$JS.API.DIRECT.GET.chat", b'{"seq": 1}', reply="given.get")
            refused = raw.next_message()
            assert (refused.subject, refused.payload) == (b"given.get", b"")
            assert refused.headers.startswith(b"NATS/1.0 403 "), refused
            raw.pub(f"$JS.API.CONSUMER.MSG.NEXT.chat.{pulling}", wish, reply="given.pull")
            assert raw.next_message().headers.startswith(b"NATS/1.0 403 ")
            assert raw.no_message()
            denied = [line for line in daemon.log.splitlines() if '"event": "denied"' in line]
            assert any("given.get" in line for line in denied), "it is audited"


def test_a_stream_that_comes_later_records_no_deliveries(tmp_path: Path) -> None:
    with configured() as server, attached(server, tmp_path) as daemon:
        until(lambda: "jetstream-api-answers" in daemon.log and "leaf-connected" in daemon.log)
        with RawNats(server.port, timeout=30) as raw, connect_sync(daemon.pull_address) as client:
            publish(raw, "chat.evil", EVIL)
            raw.sub("given.*")
            raw.ping()
            pushing = consumer(raw, deliver_subject="given.push", idle_heartbeat=SECOND // 8)
            pulling = consumer(raw)["name"]
            wish = json.dumps(
                {"batch": 100, "expires": 100 * SECOND, "idle_heartbeat": SECOND // 8}
            )
            raw.pub(f"$JS.API.CONSUMER.MSG.NEXT.chat.{pulling}", wish, reply="given.pull")
            came = [raw.next_message().payload for _ in range(4)]
            assert came.count(EVIL) == 2, "and heartbeats"

            client.create_stream("given", subject="given.>")
            raw.ping()
            start = client.describe_stream("given").high_watermark
            for number in range(20):
                publish(raw, f"chat.{number}", EVIL)
            until(lambda: "error" in asked(raw, f"CONSUMER.INFO.chat.{pushing['name']}"))
            assert consumer(raw, deliver_subject="given.push")["error"]["err_code"] == 10081
            own = publish(raw, "given.own", b"own")["seq"]
            assert own <= start + 1, "what was under way when it was created, at most"
            assert own <= 3


def test_a_stream_that_comes_later_records_nothing_for_workers(tmp_path: Path) -> None:
    """A consumer with acks stays, since it has a state, but neither its deliveries nor those that
    are repeated go to a subject that a stream records now."""
    with configured() as server, attached(server, tmp_path) as daemon:
        until(lambda: "jetstream-api-answers" in daemon.log and "leaf-connected" in daemon.log)
        with RawNats(server.port, timeout=30) as raw, connect_sync(daemon.pull_address) as client:
            publish(raw, "chat.evil", EVIL)
            raw.sub("given.*")
            raw.ping()
            common = {"ack_policy": "explicit", "ack_wait": SECOND // 4}
            consumer(raw, deliver_subject="given.push", idle_heartbeat=SECOND // 8, **common)
            pulling = consumer(raw, **common)["name"]
            wish = json.dumps({"batch": 1000, "expires": 100 * SECOND})
            raw.pub(f"$JS.API.CONSUMER.MSG.NEXT.chat.{pulling}", wish, reply="given.pull")
            assert [raw.next_message().payload for _ in range(6)].count(EVIL) > 2, "repeated, too"

            client.create_stream("given", subject="given.>")
            raw.ping()
            start = client.describe_stream("given").high_watermark
            for number in range(20):
                publish(raw, f"chat.{number}", EVIL)
            time.sleep(1)  # several deliveries are due
            own = publish(raw, "given.own", b"own")["seq"]
            assert own <= start + 1, "what was under way when it was created, at most"
            assert own <= 4


def test_a_witness_of_everything_breaks_no_reader(tmp_path: Path) -> None:
    """It records what is delivered to inboxes, too; but no consumer may push its own records, which
    it would record again for ever. JetStream refuses that, too."""
    streams = {**STREAMS, "archive": {"subject": ">", "acks": "off"}}
    with configured() as server, serving(server, tmp_path, streams=streams) as daemon:
        until(lambda: "jetstream-api-answers" in daemon.log and "leaf-connected" in daemon.log)
        with RawNats(server.port, timeout=30) as raw:
            publish(raw, "chat.evil", EVIL)
            raw.sub("_INBOX.push")
            raw.ping()
            assert "error" not in consumer(raw, deliver_subject="_INBOX.push")
            assert raw.next_message().payload == EVIL
            error = consumer(raw, "archive", deliver_subject="_INBOX.loop")["error"]
            assert error["err_code"] == 10081


def test_the_same_words_as_jetstream(daemon: Daemon, poor: RawNats) -> None:
    with NatsServer(jetstream=True) as real, RawNats(real.port) as raw:
        created = {"name": "chat", "subjects": ["chat.>"], "storage": "memory"}
        assert "error" not in asked(raw, "STREAM.CREATE.chat", created)
        for subject in ("chat.loop", "a.*", "a.>", ">", "a..b", ".a", "a b"):
            theirs = consumer(raw, deliver_subject=subject)["error"]
            assert consumer(poor, deliver_subject=subject)["error"] == theirs


# --- clients as they are ---


@pytest.mark.parametrize("prefix", ["_INBOX", "_INBOX_poor"])
async def test_an_ordered_consumer_of_a_poor_user(
    daemon: Daemon, server: NatsServer, poor: RawNats, prefix: str
) -> None:
    publish(poor, "chat.evil", EVIL)
    login = {"user": "poor", "password": "poor"}
    client = await nats.connect(server.url, inbox_prefix=prefix.encode(), **login)
    try:
        js = client.jetstream(timeout=30)
        reader = await js.subscribe("chat.evil", stream="chat", ordered_consumer=True)
        assert (await reader.next_msg(timeout=30)).data == EVIL
        assert (await js.get_last_msg("chat", "chat.evil", direct=True)).data == EVIL
        assert (await js.get_last_msg("chat", "chat.evil")).data == EVIL
    finally:
        await client.close()


async def test_the_least_permissions_of_the_daemon(tmp_path: Path) -> None:
    """docs/how-to/secure.md lists them."""
    permissions = {
        "subscribe": ["chat.>", "_INBOX.>", "$JS.API.>", "$JS.FC.>", "liftlog.liftlog.offsets.*.*"],
        "publish": ["_INBOX.>", "$JS.API.INFO"],
    }
    login = {"user": "daemon", "password": "secret"}
    users = [{**login, "permissions": permissions}, {"user": "rich", "password": "rich"}]
    listener = {"listen": "127.0.0.1:-1"}
    with NatsServer(
        leafnodes=listener, authorization={"users": users}, no_auth_user="rich"
    ) as server:
        found = re.search(r"Listening for leafnode connections on (\S+:\d+)", server.log)
        assert found is not None
        nats_settings = {"jetstream_api": True, "leafnode": found[1], **login}
        streams = {"chat": {"subject": "chat.>"}}
        with Daemon(server.url, {"nats": nats_settings, "streams": streams}) as daemon:
            until(lambda: "jetstream-api-answers" in daemon.log and "leaf-connected" in daemon.log)
            with RawNats(server.port, timeout=30) as raw:
                publish(raw, "chat.a", EVIL)
                raw.sub("svc.push")
                raw.ping()
                assert "error" not in consumer(raw, deliver_subject="svc.push"), "there is no ACL"
                client = await nats.connect(server.url)
                try:
                    js = client.jetstream(timeout=30)
                    reader = await js.subscribe("chat.a", stream="chat", ordered_consumer=True)
                    assert (await reader.next_msg(timeout=30)).data == EVIL
                    assert (await js.get_last_msg("chat", "chat.a", direct=True)).data == EVIL
                finally:
                    await client.close()
                assert raw.no_message(), "NATS stops what the daemon may not publish"
            assert "ermissions" not in daemon.log


def test_a_client_of_another_account(tmp_path: Path) -> None:
    """Its reply subjects come as `_R_.<...>`, by which the server finds the way back."""
    accounts = {
        "ours": {
            "users": [{"user": "rich", "password": "rich"}],
            "exports": [{"service": "$JS.API.DIRECT.GET.>", "response_type": "Stream"}],
        },
        "theirs": {
            "users": [{"user": "far", "password": "far"}],
            "imports": [{"service": {"account": "ours", "subject": "$JS.API.DIRECT.GET.>"}}],
        },
    }
    with NatsServer(
        leafnodes={
            "listen": "127.0.0.1:-1",
            "authorization": {"user": "rich", "password": "rich", "account": "ours"},
        },
        accounts=accounts,
        no_auth_user="rich",
    ) as server:
        with serving(server, tmp_path) as daemon:
            until(lambda: "jetstream-api-answers" in daemon.log)
            with RawNats(server.port, timeout=30) as raw:
                publish(raw, "chat.evil", EVIL)
            login = {"user": "far", "pass": "far"}
            with RawNats(server.port, timeout=30, connect_options=login) as far:
                got = far.request("$JS.API.DIRECT.GET.chat", b'{"seq": 1}')
                assert got.payload == EVIL
                far.pub("$JS.API.DIRECT.GET.chat", b'{"seq": 1}', reply="orders.injected")
                far.ping()
            with RawNats(server.port, timeout=30) as raw:
                assert publish(raw, "orders.first", b"")["seq"] == 1, "it stays in their account"


# --- the HTTP port ---


def test_what_is_appended_stays_in_its_stream(tmp_path: Path) -> None:
    """The daemon publishes it with its own login: whoever administers one stream must not write
    into another one by that."""
    token = "mine." + "x" * 24
    acl = tmp_path / "own.yaml"
    acl.write_text(
        f"""
principals: {{mine: {{token_hash: "{hash_token(token.partition(".")[2])}"}}}}
roles: {{mine: [{{allow: [admin, read], streams: ["mine*"]}}]}}
bindings: {{mine: [mine]}}
"""
    )
    acl.chmod(0o640)
    streams = {
        "orders": {"subject": "orders.>"},
        "mine": {"subject": ["orders.mine.>", "mine.>"]},
        "mine-too": {"subject": "mine.*"},
        "archive": {"subject": ">", "acks": "off"},
    }
    settings = {"streams": streams, "acl": {"file": str(acl)}, "http": {"log_api": True}}
    with NatsServer() as server, RawNats(server.port) as judge:
        with Daemon(server.url, settings) as daemon, Caller(daemon, token) as call:
            judge.sub("orders.>")
            judge.ping()

            def append(subject: str) -> Any:
                return call("POST", "mine/records", {"subject": subject, "value": "x"})

            assert (append("mine.a").status, append("mine.a.b").status) == (201, 201)
            denied = append("orders.mine.a")
            assert (denied.status, denied.error) == (403, "FORBIDDEN"), denied.body
            assert judge.no_message()
            assert_no_traceback(daemon)
