"""Runs a daemon with the largest state that the quotas of one principal allow, and sends every
request that it answers, over each protocol.

The kinds are enumerated from the code (`kinds_of`), and their requests are defined in this module.
The campaign (`tests/integration/test_request_flood.py`) fails if a kind has no request.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
from support.clients.flooding_client import Plan
from support.clients.priced_victims import Victims, processor_seconds
from support.clients.raw_nats import RawNats, header_block, hpub_frame, pub_frame
from support.clients.raw_pull import BlockingPull, frame
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from acl.tokens import hash_token
from liftlog.log.files.leases import EXPORT_LEASES, MAX_LEASES_PER_PRINCIPAL
from liftlog.protocol.groups import MAX_SLOTS
from liftlog.protocol.workers import MAX_ACKED, MAX_BATCH, encode_runs

_SECRETS = ("the-secret-of-the-flooder", "the-secret-of-the-victim")
FLOODER, VICTIM = f"flooder.{_SECRETS[0]}", f"victim.{_SECRETS[1]}"
_TESTS = Path(__file__).resolve().parents[2]
_MEMBERS = 1000
"""Number of members of one group. A principal may have 2,000."""
_CONSUMERS = 100
"""Number of ephemeral consumers over JetStream's API of one client, which may have 128."""
_CREATED_AT_ONCE = 20
_NOT_ACKED = MAX_ACKED
"""Number of messages that one consumer with acks has received and not acked."""
_ACKS = 3000
"""Number of reply subjects of delivered messages that the floods use."""
_GROUPED = ("overflow", "pinned_client", "prioritized")
"""Policies of priority groups. Each has a consumer."""
_QUIET_SECONDS = 120.0
_NOTHING = "{}"

ACL = f"""
principals:
  flooder: {{token_hash: "{hash_token(_SECRETS[0])}"}}
  victim: {{token_hash: "{hash_token(_SECRETS[1])}"}}
roles:
  most:
  - allow: [create, delete, read, commit, admin, erase, work, replicate]
    streams: ["*", _offsets]
    attach: [">"]
  own: [{{allow: [read], streams: [victim]}}]
bindings: {{flooder: [most], victim: [own]}}
nats: {{allow: [create, read, delete], streams: ["*"], attach: [">"]}}
"""


@dataclass(frozen=True)
class Size:
    records: int
    streams: int
    groups: int
    checkpoints: int
    workers: int
    """Number of durable consumers with acks. All clients together may have 10,000."""


WHOLE = Size(records=300_000, streams=200, groups=1000, checkpoints=9000, workers=500)
SMALL = Size(records=30_000, streams=10, groups=100, checkpoints=300, workers=20)


class FloodWorld:
    """The state of the daemon. In `streams`, `big` has the records, each tenth on a subject of its
    own; `spent` may be changed, and `victim` belongs to another client."""

    def __init__(
        self,
        server: NatsServer,
        daemon: Daemon,
        lease: Mapping[str, Any],
        joined: int,
        identity: str,
        acks: list[str],
    ) -> None:
        """`identity` belongs to the consumer `w0`, which has unacked messages. `acks` are reply
        subjects of some of these messages."""
        self.server, self.daemon, self.identity, self.acks = server, daemon, identity, acks
        self.lease, self.incarnation = str(lease["lease_id"]), str(lease["incarnation"])
        self.joined = joined

    @property
    def victims(self) -> Victims:
        daemon = self.daemon
        return Victims(
            pid=daemon.pid,
            nats_port=self.server.port,
            pull_port=daemon.pull_port,
            http_address=daemon.http_address,
            token=VICTIM,
            stream="victim",
            subject="victim.a",
            page="/ui/streams/victim",
        )

    def port_of(self, door: str) -> int:
        if door == "pull":
            return self.daemon.pull_port
        if door == "nats":
            return self.server.port
        return int(self.daemon.http_address.rpartition(":")[2])


@contextlib.contextmanager
def flood_world(server: NatsServer, size: Size) -> Iterator[FloodWorld]:
    """Start the daemon and fill it. Its files are in memory if possible. On a busy disk, the daemon
    would work for the flood while a victim waits for the disk, and the test must not measure
    that."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(
        prefix="liftlog-flood-", dir=memory if os.access(memory, os.W_OK) else None
    ) as name:
        yield from _made(server, size, Path(name))


def _made(server: NatsServer, size: Size, directory: Path) -> Iterator[FloodWorld]:
    acl = directory / "acl.yaml"
    acl.write_text(ACL)
    acl.chmod(0o600)
    settings: dict[str, Any] = {
        "acl": {"file": str(acl)},
        "nats": {"jetstream_api": True, "leafnode": _leafnode_of(server)},
        "checkpoints": {"over_nats": True},
        "http": {"log_api": True},
        "streams": {
            "big": {"subject": "big.>", "compaction": {}},
            "victim": {"subject": "victim.>"},
            **{f"s{n}": {"subject": f"s{n}.>"} for n in range(size.streams)},
        },
    }
    with Daemon(server.url, settings, directory=directory / "daemon") as daemon:
        yield FloodWorld(server, daemon, *_fill(server, daemon, size))


def _leafnode_of(server: NatsServer) -> str:
    found = re.search(r"Listening for leafnode connections on (127\.0\.0\.1:\d+)", server.log)
    assert found is not None, server.log
    return found[1]


def _fill(
    server: NatsServer, daemon: Daemon, size: Size
) -> tuple[dict[str, Any], int, str, list[str]]:
    """Fill the daemon. Returns a lease, the number of a membership, the identity of a consumer, and
    the reply subjects of messages that it has delivered."""
    with RawNats(server.port, timeout=60) as nats:
        for first in range(0, size.records, 1000):
            nats.send(b"".join([_record(first + n) for n in range(1000)]))
        for n in range(2000):
            nats.pub(b"victim.%c" % (97 + n % 8), b"x" * 100)
        assert "error" not in nats.request("victim.a", b"the last").json()
        while nats.request("big.last", b"").json().get("error"):  # while the request is refused
            pass
        bucket = {
            "name": "KV_bucket",
            "subjects": ["$KV.bucket.>"],
            "max_msgs_per_subject": 5,
            "allow_direct": True,
            "allow_rollup_hdrs": True,
            "discard": "new",
        }
        made = nats.request("$JS.API.STREAM.CREATE.KV_bucket", json.dumps(bucket)).json()
        assert "error" not in made, made
        for first in range(0, size.records // 10, 500):
            nats.send(
                b"".join([pub_frame(b"$KV.bucket.k%d" % (first + n), b"v") for n in range(500)])
            )
        nats.ping()
        for number in range(_CONSUMERS):
            made = nats.request(f"$JS.API.CONSUMER.CREATE.big.c{number}", _consumer(f"c{number}"))
            assert "error" not in made.json(), made
        for first in range(0, size.workers, _CREATED_AT_ONCE):
            _create_workers(nats, range(first, min(first + _CREATED_AT_ONCE, size.workers)))
        for number, policy in enumerate(_GROUPED):
            config = _worker(f"q{2 * number}", priority_policy=policy, priority_groups=["g"])
            made = nats.request(f"$JS.API.CONSUMER.CREATE.big.q{2 * number}", config)
            assert "error" not in made.json(), made
        with BlockingPull(daemon.pull_port, token=FLOODER) as pull:
            # This consumer is first, because without a message an answer has no identity.
            identity = str(
                _asked(pull, [{"k": "work", "s": "big", "c": "w0", "w": 20_000}])[0]["x"]
            )
        assert identity
        acks = _receive(nats, "w0", min(_NOT_ACKED - 1, size.records // 2))
    with BlockingPull(daemon.pull_port, token=FLOODER) as pull:
        pull.sock.settimeout(60)
        _asked(pull, [{"k": "create", "s": "spent", "c": {"subject": "spent.>", "compaction": {}}}])
        leases = [{"k": "lease", "s": "big", "o": "earliest", "t": 3_600_000}]
        answers = _asked(pull, leases * (MAX_LEASES_PER_PRINCIPAL - EXPORT_LEASES))
        lease = answers[0]["d"]
        crowd = [_join("crowd", f"m{n}", slots=MAX_SLOTS) for n in range(_MEMBERS)]
        joined = int(_asked(pull, crowd)[0]["j"])
        _asked(pull, [_join(f"g{n}", "m", slots=64) for n in range(size.groups - 16)])
        _asked(pull, [_commit(n) for n in range(size.checkpoints)])
    return lease, joined, identity, acks


def _consumer(name: str, **more: object) -> str:
    config = {"name": name, "ack_policy": "none", "inactive_threshold": 3600 * 10**9, **more}
    return json.dumps({"stream_name": "big", "config": config})


def _worker(name: str, **more: object) -> str:
    return _consumer(name, **_worker_config(name, **more))


def _worker_config(name: str, **more: object) -> dict[str, Any]:
    """Return the configuration of a durable consumer with acks. Every second consumer has
    filters."""
    config: dict[str, Any] = {
        "durable_name": name,
        "ack_policy": "explicit",
        "ack_wait": 3600 * 10**9,
        "max_ack_pending": _NOT_ACKED,
        "inactive_threshold": 0,
    }
    if int(name[1:]) % 2:
        config["filter_subject"] = "big.of.>"
    return config | more


def _create_workers(nats: RawNats, numbers: Iterable[int]) -> None:
    replies = {nats.new_reply(): f"w{number}" for number in numbers}
    for reply, name in replies.items():
        nats.pub(f"$JS.API.CONSUMER.CREATE.big.{name}", _worker(name), reply=reply)
    while replies:
        made = nats.next_message()
        assert "error" not in made.json(), made
        del replies[made.subject]


def _receive(nats: RawNats, consumer: str, count: int) -> list[str]:
    """Receive about `count` messages without acking them. Returns some of their reply subjects."""
    received, acks = 0, list[str]()
    while received < count:
        batch = json.dumps({"batch": 1000, "expires": 5 * 10**9})
        nats.pub(f"$JS.API.CONSUMER.MSG.NEXT.big.{consumer}", batch, reply=nats.new_reply())
        with contextlib.suppress(TimeoutError):  # a pull may be lost, so clients repeat it
            for _ in range(1000):
                message = nats.next_message(6)
                if not message.reply:
                    break  # a status: the pull has ended
                received += 1
                if len(acks) < _ACKS:
                    acks.append(message.reply.decode())
    return acks


def _record(number: int) -> bytes:
    if number % 10:
        return pub_frame(b"big.all", b'{"n": %d, "text": "%b"}' % (number, b"x" * 60))
    headers = header_block({"Liftlog-Key": f"k{number}", "Trace": "x" * 40})
    return hpub_frame(b"big.of.%d" % number, headers, b"y" * 100)


def _asked(pull: BlockingPull, requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the answers in the order of the requests. As many requests are in flight as
    allowed."""
    found: list[dict[str, Any]] = [{}] * len(requests)
    sent = done = 0
    while done < len(requests):
        while sent < len(requests) and sent - done < 60:
            pull.send(frame({**requests[sent], "i": sent + 1}))
            sent += 1
        answer = pull.receive()
        assert answer["k"] != "error", answer
        found[answer["i"] - 1] = answer
        done += 1
    return found


def _join(group: str, member: str, *, slots: int) -> dict[str, Any]:
    return {"k": "groupjoin", "s": "big", "g": group, "m": member, "t": member, "z": 3_600_000,
            "p": slots}  # fmt: skip


def _commit(number: int) -> dict[str, Any]:
    return {"k": "commit", "s": "big", "c": f"c{number}", "o": 1, "m": "x" * 200}


# --- the pull protocol ---

Requests = dict[str, list[dict[str, Any]]]


def pull_requests(world: FloodWorld) -> Requests:
    """Return the most expensive requests by kind."""
    asked = _of_streams(world) | _of_consumers(world) | _of_workers(world) | _of_nodes()
    # Each request creates what the other request deletes. A slot of a group moves back and forth.
    asked["create"] = asked["delete"] = [
        one
        for made, gone in zip(_with("create", asked), _with("delete", asked), strict=True)
        for one in (made, gone)
    ]
    asked["lease"] = asked["release"] = [
        {"k": "lease", **asked["lease"][0]}, {"k": "release", **asked["release"][0]},
    ]  # fmt: skip
    asked["groupjoin"] = asked["groupleave"] = [
        *_with("groupjoin", asked), *_with("groupleave", asked),
    ]  # fmt: skip
    return asked


def _of_streams(world: FloodWorld) -> Requests:
    keys = [b"k%d" % (10 * n) for n in range(100)]
    return {
        "ping": [{}],
        "cancel": [{}],
        "fetch": [
            {"s": "big", "o": 1, "fs": ["big.of.>"], "w": 0},
            {"s": "big", "o": 1, "fs": ["big.none"], "w": 0},
            {"s": "big", "o": 1, "fk": keys, "w": 0, "p": ["offset", "key"]},
            {"s": "big", "o": 1, "fh": ["Trace"], "w": 0},
            {"s": "big", "o": 1, "fg": [0, 5], "fp": MAX_SLOTS, "w": 0},
            {"s": "big", "o": 1, "w": 0},
            {"s": "big", "t": 1, "w": 0, "fo": ["big.of.10"]},
        ],
        "create": [{"s": f"t{n}", "c": {"subject": f"t{n}.>"}} for n in range(8)],
        "delete": [{"s": f"t{n}"} for n in range(8)],
        "describe": [{"s": "big"}],
        "list": [{}],
        "compact": [{"s": "spent"}],
        "update": [{"s": "spent", "c": {"retention": {"max_age": "90d"}}, "d": True}],
        "pause": [{"s": "spent"}],
        "resume": [{"s": "spent"}],
        "readonly": [{"s": "spent", "o": False}],
        "truncate": [{"s": "spent", "o": 1}],
        "erase": [{"s": "spent", "o": [1, 3, 5, 9], "d": dry} for dry in (True, False)]
        + [{"s": "big", "fs": ["big.*.10"], "fh": ["None"], "d": True}],
        "erasures": [{"s": "spent"}],
        "eraseremove": [{"s": "spent"}],
        "prove": [{"s": "spent"}, {"s": "big"}],
        "erasedoffsets": [{"s": "spent"}, {"s": "big"}],
        "lease": [{"s": "spent", "o": "earliest", "t": 60_000}],
        "renew": [{"s": "big", "l": world.lease, "t": 3_600_000}],
        "release": [{"s": "big", "l": "none"}],
        "leases": [{"s": "big"}],
        "streamsfor": [{"u": "big.a"}],
        "extents": [{"s": "big", "o": 1, "z": 1, "fs": "big.of.10"}],
        "metadata": [{}],
    }


def _of_consumers(world: FloodWorld) -> Requests:
    crowd = {"s": "big", "g": "crowd", "m": "m0", "j": world.joined}
    return {
        "commit": [_without_kind(_commit(n)) for n in range(64)],
        "checkpoint": [{"s": "big", "c": "c1"}],
        "checkpoints": [{}, {"s": "spent"}],
        "forget": [{"s": "big", "c": f"none{n}"} for n in range(8)],
        "groupjoin": [_without_kind(_join("crowd", f"m{n}", slots=MAX_SLOTS)) for n in range(8)],
        "groupbeat": [{**crowd, "n": 0, "a": []}],
        "groupcommit": [
            {**crowd, "n": 1, "a": [0], "o": [2], "x": world.incarnation, "e": 1},
        ],
        "groupleave": [{**crowd, "m": "nobody"}],
        "group": [{"s": "big", "g": "crowd"}],
        "groups": [{}],
        "groupseek": [{"s": "big", "g": "crowd", "o": 1}],
        "groupremove": [{"s": "big", "g": "nothing"}],
    }


def _of_workers(world: FloodWorld) -> Requests:
    acked = {"s": "big", "c": "w0", "x": world.identity}
    each_second = encode_runs([(2 * n + 1, 1, 1) for n in range(MAX_BATCH)])
    everything = encode_runs([(1, MAX_ACKED, 1)])
    made = [
        {"s": "big", "c": f"p{n}", "d": _worker_config(f"p{n}", inactive_threshold=10**8)}
        for n in range(16)
    ]
    return {
        "work": [
            {"s": "big", "c": "w2", "n": MAX_BATCH, "w": 0},
            {"s": "big", "c": "w3", "n": 100, "w": 0},
            {"s": "big", "c": "w4", "n": 1, "w": 200},
            {"s": "big", "c": "none", "n": 1},
        ],
        "rest": [{"s": "big", "c": "w2", "u": "nobody"}],
        "ack": [
            {**acked, "a": "progress", "r": everything},
            {**acked, "a": "nak", "d": 10**11, "r": everything},
            {**acked, "a": "nak", "d": 10**9, "r": encode_runs([(7, 1, 1)])},
            {**acked, "a": "term", "r": encode_runs([(11, 1, 1)]), "t": "for no reason " * 70},
            {**acked, "a": "ack", "r": encode_runs([(n, 1, 1) for n in range(100, 200)])},
            {**acked, "a": "progress", "r": each_second},
            {**acked, "x": "another", "a": "ack", "r": each_second},
        ],
        "consumercreate": [
            {"s": "big", "c": "w5", "d": _worker_config("w5")}, *made,
        ],
        "consumerupdate": [
            {"s": "big", "c": "w5", "d": {"description": text}} for text in ("one", "another")
        ],
        "consumerreset": [{"s": "big", "c": "w9", "d": {"deliver_policy": "all"}}],
        "consumer": [{"s": "big", "c": "w0"}],
        "consumers": [{"s": "big"}],
        "consumerpause": [{"s": "big", "c": "w7", "u": until} for until in (2**62, 0)],
        "consumerdelete": [{"s": "big", "c": "none"}],
    }  # fmt: skip


def _of_nodes() -> Requests:
    node = {"n": "nobody"}
    return {
        "peer": [{"n": "b", "t": 1, "c": "none"}],
        "replicate": [{"s": "big", "x": "", "e": 0, "o": 1, "l": 0, "m": 1 << 20}],
        "consumerstates": [{"s": "big", "x": "", "e": 0}],
        "suspect": [node],
        "forward": [{"m": msgpack.packb({"k": "list", "i": 1})}],
        "handover": [{"s": "big", "x": "", "e": 0, **node, "p": "ask", "y": b"0" * 16}],
        "look": [{"s": "big", "v": 1}],
        "elect": [{"s": "big"}],
        "cluster": [{}],
        "move": [{"s": "big"}],
        "drain": [node],
        "forgetnode": [node],
        "copies": [{"s": ["big"]}],
        "restore": [{"d": True}],
        "ends": [{"s": ["big"]}],
        "resign": [{"s": ["big"]}],
    }


def _with(kind: str, asked: Requests) -> list[dict[str, Any]]:
    return [{"k": kind, **one} for one in asked[kind]]


def _without_kind(request: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in request.items() if name != "k"}


def pull_plan(requests: Requests, kinds: Sequence[str]) -> list[list[str]]:
    return [
        [msgpack.packb({"k": kind, **one}).decode("latin-1")] for kind in kinds
        for one in requests[kind]
    ]  # fmt: skip


# --- HTTP ---

_IN_PATHS = {
    "{stream}": "big", "{offset}": "1001", "{file}": "live.js", "{consumer}": "c1",
    "{group}": "crowd", "{worker}": "w0", "{nowhere}": "none",
}  # fmt: skip
_QUERIES = {
    "/ui/streams/{stream}/records": "?value=nowhere-in-it",
    "/ui/streams/{stream}/records.json": "?key=k999999999",
    "/ui/streams/{stream}/versions": "?key=k10",
    "/ui/streams/{stream}/consumers": "?name=c1&to=start",
    "/ui/streams/{stream}/consumers/{consumer}": "?to=yesterday%2015:00",
    "/ui/consumers": "?q=c",
    "/api/v1/streams/{stream}/records": "?before=1",
    "/jsz": "?consumers=true&config=true",
}
_BODY = '{"value": "x", "subject": "spent.a"}'


def http_request(method: str, route: str) -> str:
    """Return the most expensive request of a route."""
    path = route
    if method in ("POST", "DELETE") and route.startswith("/api/"):
        path = path.replace("{stream}", "spent")
    for part, value in _IN_PATHS.items():
        path = path.replace(part, value)
    assert "{" not in path, f"say what stands for this part of {route}"
    query = _QUERIES.get(route) or _QUERIES.get(route.removesuffix(".json"), "")
    body, media = "", "application/json"
    if method == "POST":
        is_api = route.startswith("/api/")
        own = '{"subjects": ["none.*"], "dry_run": true}' if route.endswith("/erasures") else _BODY
        body, media = (own, media) if is_api else ("a=b", "application/x-www-form-urlencoded")
    return (
        f"{method} {path}{query} HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Bearer {FLOODER}\r\nContent-Type: {media}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    )


# --- NATS ---


def jetstream_requests() -> dict[str, list[tuple[str, str]]]:
    """Return requests by method: the tokens after the method, and the payload."""
    stream = {"name": "spent", "subjects": ["spent.>"]}
    asked: dict[str, list[tuple[str, Any]]] = {
        "INFO": [("", _NOTHING)],
        "STREAM.NAMES": [("", _NOTHING), ("", {"subject": "big.a"})],
        "STREAM.LIST": [("", _NOTHING)],
        "STREAM.INFO": [
            ("big", {"subjects_filter": ">"}),
            ("big", {"subjects_filter": "big.none.*"}),
            ("big", {"deleted_details": True}),
            ("KV_bucket", {"subjects_filter": ">"}),
        ],
        "STREAM.CREATE": [("spent", stream), ("s1", {"name": "s1", "subjects": ["big.a"]})],
        "STREAM.UPDATE": [("spent", stream)],
        "STREAM.DELETE": [("none", "")],
        "STREAM.PURGE": [
            ("spent", _NOTHING),
            ("big", {"filter": "none.>"}),
            ("big", {"filter": "big.of.*", "keep": 2**40}),
        ],
        "STREAM.MSG.GET": [
            ("big", {"next_by_subj": "big.none.*"}),
            ("big", {"last_by_subj": "big.of.*"}),
            ("big", {"seq": 1000}),
        ],
        "STREAM.MSG.DELETE": [("big", {"seq": 1}), ("KV_bucket", {"seq": 1})],
        "STREAM.SNAPSHOT": [("big", {"deliver_subject": "_INBOX.none"})],
        "STREAM.RESTORE": [("new", _NOTHING)],
        "STREAM.PEER.REMOVE": [("big", {"peer": "a"})],
        "STREAM.LEADER.STEPDOWN": [("big", "")],
        "DIRECT.GET": [
            ("big", {"multi_last": ["big.>"], "batch": 1000}),
            ("big", {"next_by_subj": "big.none.>", "seq": 1}),
            ("big", {"last_by_subj": "big.*.123"}),
            ("KV_bucket", {"multi_last": ["$KV.bucket.>"]}),
        ],
        **_consumer_requests(),
        "unknown": [("NOTHING", "")],
    }  # fmt: skip
    return {
        method: [(rest, one if isinstance(one, str) else json.dumps(one)) for rest, one in some]
        for method, some in asked.items()
    }


def _consumer_requests() -> dict[str, list[tuple[str, Any]]]:
    chosen = {"filter_subject": "big.of.*", "deliver_policy": "last_per_subject"}
    return {
        "CONSUMER.CREATE": [
            (f"big.new{n}", _consumer(f"new{n}", **chosen, inactive_threshold=10**8))
            for n in range(16)
        ]
        + [(f"big.v{n}", _worker(f"v{n}", inactive_threshold=10**8)) for n in range(16)],
        "CONSUMER.DURABLE.CREATE": [
            ("big.d", _consumer("d", durable_name="d")),
            ("big.w5", _worker("w5", description="the same but for this")),
            ("big.w5", _worker("w5")),
        ],
        "CONSUMER.INFO": [("big.c1", ""), ("big.w0", "")],
        "CONSUMER.DELETE": [("big.none", ""), ("big.w9", "")],
        "CONSUMER.PAUSE": [
            ("big.c1", _NOTHING),
            ("big.none", _NOTHING),
            ("big.w7", {"pause_until": "2100-01-01T00:00:00Z"}),
            ("big.w7", _NOTHING),
        ],
        "CONSUMER.RESET": [("big.w9", _NOTHING), ("big.none", _NOTHING)],
        "CONSUMER.UNPIN": [
            ("big.w9", '{"group": "none"}'),
            ("big.q2", '{"group": "g"}'),
            ("big.none", '{"group": "none"}'),
        ],
        "CONSUMER.NAMES": [("big", _NOTHING)],
        "CONSUMER.LIST": [("big", _NOTHING)],
        "CONSUMER.MSG.NEXT": [
            ("big.c1", {"batch": 100, "no_wait": True}),
            ("big.c2", "1"),
            ("big.w2", {"batch": 100, "no_wait": True}),
            ("big.w3", {"batch": 1000, "expires": 10**9, "idle_heartbeat": 4 * 10**8}),
            ("big.w4", {"batch": 1, "no_wait": True}),
            ("big.w6", {"batch": 10, "max_bytes": 1, "expires": 10**9}),
            ("big.q0", {"batch": 1, "group": "g", "expires": 10**9, "min_pending": 10**9}),
            ("big.q0", {"batch": 9, "group": "g", "expires": 10**9}),
            ("big.q2", {"batch": 9, "group": "g", "expires": 10**9}),
            ("big.q2", {"batch": 9, "group": "g", "expires": 10**9, "id": "none"}),
            ("big.q4", {"batch": 9, "group": "g", "expires": 10**9, "priority": 9}),
            ("big.q4", {"batch": 9, "group": "g", "expires": 10**9, "priority": 0}),
            ("big.none", "1"),
        ],
    }  # fmt: skip


def jetstream_plan(methods: Sequence[str]) -> list[list[str]]:
    asked = jetstream_requests()
    return [
        [".".join(filter(None, ("$JS.API", "" if method == "unknown" else method, rest))), payload]
        for method in methods
        for rest, payload in asked[method]
    ]


def control_requests(world: FloodWorld) -> dict[str, list[list[str]]]:
    """Return messages by the subject to which the daemon subscribes. Text after a comma is the
    payload."""
    one, two, three, four = world.acks[:4]
    return {
        "liftlog.liftlog.offsets.*.*": [
            [
                "liftlog.liftlog.offsets.big.over_nats",
                '{"offset": 7, "metadata": "%s"}' % ("x" * 4000),
            ],
            ["liftlog.liftlog.offsets.big.other", "8"],
            ["liftlog.liftlog.offsets.none.other", "8"],
        ],
        "$JS.FC.>": [["$JS.FC.big.c1.x", ""], ["$JS.FC.none.none.x", ""]],
        "$JS.ACK.big.>": [
            [one, "+WPI"],
            [one, '-NAK {"delay": 1000000000}'],
            [two, "-NAK"],
            [three, "+NXT {"],
            [four, '+NXT {"batch": 10, "no_wait": true}'],
            ["$JS.ACK.big.w0.9.99999999.99999999.1.1", "+ACK"],
            ["$JS.ACK.big.w4.1.5.5.1.1", "+TERM " + "for no reason " * 50],
            ["$JS.ACK.big.none.1.5.5.1.1", ""],
            ["$JS.ACK.big.w0.forged", "+ACK"],
            ["$JS.ACK.big.%s.1.1.1.1.1" % ("x" * 3000), "x" * 4000],
        ],
        "$JS.ACK.big.>, each answered": [[ack, "+ACK"] for ack in world.acks[1000:2000]]
        + [[ack, "+WPI"] for ack in world.acks[2000:]],
        "$JS.ACK.big.>, each delayed": [
            [ack, f'-NAK {{"delay": {10**11 + n}}}'] for n, ack in enumerate(world.acks[100:1000])
        ],
    }


UNANSWERED = "$JS.FC.>"
"""Subjects on which messages get no answer."""


# --- the campaign ---


@dataclass(frozen=True)
class Found:
    """The prices of victims in seconds of the daemon's processor time, and the requests and answers
    of the flood."""

    name: str
    prices: dict[str, list[float]]
    errors: dict[str, str]
    answers: dict[str, int]
    sent: int

    def worst(self) -> dict[str, float]:
        """Return the worst price of each victim with a bound. Over NATS, where the daemon cannot
        distinguish clients, an answer only has to arrive in time."""
        return {
            victim: max(prices, default=0.0)
            for victim, prices in self.prices.items()
            if "info" not in victim
        }

    def __str__(self) -> str:
        worst = "  ".join(f"{name} {1000 * one:.0f}" for name, one in self.worst().items())
        counts = "  ".join(f"{name} {count}" for name, count in self.answers.items())
        return f"{self.name}: ms of the processor: {worst} | answers: {counts} {self.errors or ''}"


def flooded(world: FloodWorld, name: str, plan: Plan) -> Found:
    """Run a flood, and measure the price of a victim's requests during the flood."""
    _await_quiet(world.daemon)
    with (
        _started("support.clients.priced_victims", world.victims.as_json()) as victims,
        _started("support.clients.flooding_client", plan.as_json()) as flooder,
    ):
        assert flooder.stdin is not None
        assert flooder.stdout is not None
        assert victims.stdin is not None
        assert victims.stdout is not None
        assert victims.stdout.readline() == "ready\n"
        flooder.stdin.close()
        assert flooder.stdout.readline() == "ready\n"
        counts = json.loads(flooder.stdout.readline())
        victims.stdin.close()
        measured = json.loads(victims.stdout.readline())
    return Found(
        name,
        {victim: one["prices"] for victim, one in measured.items()},
        {victim: one["error"] for victim, one in measured.items() if one["error"]},
        counts["answers"],
        counts["sent"],
    )


def _await_quiet(daemon: Daemon) -> None:
    """Wait until all work of an earlier flood has ended."""
    ends = time.monotonic() + _QUIET_SECONDS
    while time.monotonic() < ends:
        before = processor_seconds(daemon.pid)
        time.sleep(0.5)
        if processor_seconds(daemon.pid) - before < 0.05:
            return
    raise AssertionError("the daemon does not come to rest after a flood")


@contextlib.contextmanager
def _started(module: str, given: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        cwd=_TESTS,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(given + "\n")
        process.stdin.flush()
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
