"""JetStream's clients before a cluster: exactly one node answers each request, whoever leads, and
readers go on at the next leader."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.errors import Error
from support.clients import building, client_publishers
from support.clients.ingesting import publish_until_acked, until
from support.clients.raw_nats import RawNats
from support.daemons.cluster import NAME, Cluster
from support.daemons.nats_server import NatsServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

STREAM = {"name": "js", "subjects": ["js.>"], "num_replicas": 3, "allow_direct": True}
ASKED = 20


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer(leafnodes={"listen": "127.0.0.1:-1"}) as server:
        yield server


@pytest.fixture(scope="module")
def cluster(server: NatsServer) -> Iterator[Cluster]:
    leafnode = re.search(r"Listening for leafnode connections on (\S+:\d+)", server.log)
    assert leafnode is not None, server.log
    settings = {"nats": {"jetstream_api": True, "leafnode": leafnode[1]}}
    with Cluster(server.url, settings=settings) as cluster:
        for node in cluster.nodes.values():
            until(lambda node=node: "jetstream-api-answers" in node.log)
        yield cluster
        cluster.assert_sound()


def asked(raw: RawNats, method: str, body: object = None) -> dict[str, Any]:
    payload = b"" if body is None else json.dumps(body).encode()
    answer: dict[str, Any] = json.loads(raw.request(f"$JS.API.{method}", payload).payload)
    return answer


def is_created(raw: RawNats) -> bool:
    answer = asked(raw, "STREAM.CREATE.js", STREAM)
    return answer.get("error", {}).get("code") != 503


def asked_again(raw: RawNats, method: str, body: object = None) -> dict[str, Any]:
    """As clients do while a leader is replaced: until there is an answer, and not "temporarily
    unavailable". What was given to a node that died has no answer."""
    while True:
        with contextlib.suppress(TimeoutError):
            payload = b"" if body is None else json.dumps(body).encode()
            message = raw.request(f"$JS.API.{method}", payload, timeout=2)
            answer: dict[str, Any] = json.loads(message.payload)
            if answer.get("error", {}).get("code") != 503:
                return answer


def test_one_node_answers_whoever_is_asked(cluster: Cluster, server: NatsServer) -> None:
    with RawNats(server.port, timeout=60) as raw:
        until(lambda: is_created(raw))
        for number in range(3):
            publish_until_acked(raw, "js.a", b"%d" % number, str(number))
        replies = [raw.new_reply() for _ in range(ASKED)]
        for reply in replies:
            raw.pub("$JS.API.STREAM.INFO.js", b"", reply=reply)
            raw.pub("$JS.API.DIRECT.GET.js", b'{"seq": 2}', reply=reply)
        answers: Counter[bytes] = Counter()
        states = []
        for _ in range(2 * ASKED):
            message = raw.next_message()
            answers[message.subject] += 1
            if message.headers:
                assert message.payload == b"1"
            else:
                states.append(json.loads(message.payload)["state"]["last_seq"])
        assert states == [3] * ASKED
        assert answers == Counter(dict.fromkeys(replies, 2))
        assert raw.no_message()
        assert {one["config"]["name"] for one in asked(raw, "STREAM.LIST")["streams"]} == {"js"}


def test_one_of_two_new_streams_gets_a_subject_whichever_nodes_are_asked(
    cluster: Cluster, server: NatsServer
) -> None:
    with RawNats(server.port, timeout=60) as raw:
        until(lambda: is_created(raw))
        for turn in range(12):
            names = {raw.new_reply(): f"twin{turn}{letter}" for letter in "ab"}
            for reply, name in names.items():
                config = {"name": name, "subjects": [name, f"shared{turn}.>"], "num_replicas": 1}
                raw.pub(f"$JS.API.STREAM.CREATE.{name}", json.dumps(config).encode(), reply=reply)
            answers = [json.loads(raw.next_message().payload) for _ in names]
            codes = [one.get("error", {}).get("err_code", 0) for one in answers]
            assert sorted(codes) == [0, 10065], turn
            (name,) = (one["config"]["name"] for one in answers if "config" in one)
            assert asked_again(raw, f"STREAM.DELETE.{name}")["success"]


def test_no_consumer_pushes_into_a_stream_of_another_node(
    cluster: Cluster, server: NatsServer
) -> None:
    """All nodes lead some of these streams, and each one's consumers are tried on each subject."""
    names = [f"own{number}" for number in range(6)]
    with RawNats(server.port, timeout=60) as raw:
        until(lambda: is_created(raw))
        for name in names:
            config = {"name": name, "subjects": [f"{name}.>"], "num_replicas": 1}
            assert "error" not in asked_again(raw, f"STREAM.CREATE.{name}", config)
        for name in names:
            publish_until_acked(raw, f"{name}.a", b"1", name)
        assert len({cluster.leader(name) for name in names}) > 1
        for name in names:
            for target in names:
                config = {"ack_policy": "none", "deliver_subject": f"{target}.pushed"}
                body = {"stream_name": name, "config": config}

                def is_refused(name: str = name, body: object = body) -> bool:
                    error = asked_again(raw, f"CONSUMER.CREATE.{name}", body)["error"]
                    return error["err_code"] == 10081

                until(is_refused)
        for name in names:
            assert asked_again(raw, f"STREAM.INFO.{name}")["state"]["messages"] == 1
            asked_again(raw, f"STREAM.DELETE.{name}")


def test_the_nodes_do_not_take_each_other_for_jetstream(
    cluster: Cluster, server: NatsServer
) -> None:
    with RawNats(server.port, timeout=60) as raw:
        until(lambda: is_created(raw))
        # A node looks for JetStream after each new subscription.
        created = asked_again(raw, "STREAM.CREATE.later", {"name": "later", "num_replicas": 3})
        assert "error" not in created
        asked_again(raw, "STREAM.DELETE.later")
    for node in cluster.nodes.values():
        assert "jetstream-on-the-same-subject" not in node.log
        assert "jetstream-api-silent" not in node.log


def test_the_leader_records_other_subjects(cluster: Cluster, server: NatsServer) -> None:
    config = {"name": "wide", "subjects": ["wide.a"], "num_replicas": 3}
    with RawNats(server.port, timeout=60) as raw:
        assert "error" not in asked_again(raw, "STREAM.CREATE.wide", config)
        publish_until_acked(raw, "wide.a", b"1", "1")
        for subjects in (["wide.a", "wide.b"], ["wide.b", "wide.c.*"]):
            answer = asked_again(raw, "STREAM.UPDATE.wide", {**config, "subjects": subjects})
            assert answer["config"]["subjects"] == subjects
            for subject in subjects:
                publish_until_acked(raw, subject.replace("*", "x"), b"2", f"{subjects}{subject}")
        raw.pub("wide.a", b"too late")
        publish_until_acked(raw, "wide.b", b"3", "3")
        assert asked_again(raw, "STREAM.INFO.wide")["state"]["last_seq"] == 6
        assert "error" not in asked_again(raw, "STREAM.DELETE.wide")


def test_a_new_leader_answers(cluster: Cluster, server: NatsServer) -> None:
    with RawNats(server.port, timeout=60) as raw:
        until(lambda: is_created(raw))
        publish_until_acked(raw, "js.a", b"before", "before")
        leader = cluster.leader("js")
        cluster.kill(leader)
        publish_until_acked(raw, "js.a", b"after", "after")
        found = asked_again(raw, "STREAM.MSG.GET.js", {"last_by_subj": "js.a"})
        assert "error" not in found
        assert cluster.leader("js") != leader
        cluster.start(leader)
        cluster.wait_isr("js")
        for method, body, code in (
            ("STREAM.MSG.DELETE.js", {"seq": 1}, 10057),
            ("STREAM.PURGE.js", {"filter": "js.a"}, 10110),
        ):
            error = asked_again(raw, method, body)["error"]
            assert (error["err_code"], "replicas" in error["description"]) == (code, True)
        assert asked_again(raw, "STREAM.PURGE.js")["success"] is True
        _purge_through_a_failover(cluster, raw)
        assert asked_again(raw, "STREAM.DELETE.js")["success"] is True
        assert asked_again(raw, "STREAM.INFO.js")["error"]["err_code"] == 10059


def _purge_through_a_failover(cluster: Cluster, raw: RawNats) -> None:
    """What was purged of a subject is purged at the next leader, too."""
    config = {
        "name": "KV_b",
        "subjects": ["$KV.b.>"],
        "num_replicas": 3,
        "max_msgs_per_subject": 1,
        "allow_rollup_hdrs": True,
    }
    until(lambda: asked(raw, "STREAM.CREATE.KV_b", config).get("error", {}).get("code") != 503)
    for key in "ab":
        publish_until_acked(raw, f"$KV.b.{key}", b"1", f"{key}1")
    assert asked_again(raw, "STREAM.PURGE.KV_b", {"filter": "$KV.b.a"})["purged"] == 1
    leader = cluster.leader("KV_b")
    cluster.kill(leader)
    publish_until_acked(raw, "$KV.b.c", b"1", "c1")
    assert cluster.leader("KV_b") != leader
    found = asked_again(raw, "STREAM.INFO.KV_b", {"subjects_filter": ">"})["state"]["subjects"]
    assert found == {"$KV.b.b": 1, "$KV.b.c": 1}
    headers = {"Nats-Expected-Last-Subject-Sequence": "0"}
    publish_until_acked(raw, "$KV.b.a", b"2", "a2", **headers)
    cluster.start(leader)
    cluster.wait_isr("KV_b")
    assert asked_again(raw, "STREAM.DELETE.KV_b")["success"] is True


def test_every_node_knows_at_once_what_was_created_and_deleted(
    cluster: Cluster, server: NatsServer
) -> None:
    with RawNats(server.port, timeout=60) as raw:
        for number in range(8):
            name = f"short-{number}"
            created = asked(raw, f"STREAM.CREATE.{name}", {"name": name, "num_replicas": 2})
            if "error" in created:  # the leader was not ready in time
                assert created["error"]["code"] == 503
            until(lambda name=name: "error" not in asked(raw, f"STREAM.INFO.{name}"))
            for _ in range(6):
                assert asked_again(raw, f"STREAM.INFO.{name}")["config"]["num_replicas"] == 2
            assert asked_again(raw, f"STREAM.DELETE.{name}")["success"] is True
            for _ in range(6):
                assert asked_again(raw, f"STREAM.INFO.{name}")["error"]["err_code"] == 10059


def test_a_node_that_lags_does_not_answer_with_the_stream_that_was_deleted(
    cluster: Cluster, server: NatsServer
) -> None:
    """A client that was told that its stream is gone creates it again, and NATS gives that request
    to a node that has not received the deletion yet."""
    config = {"name": "again", "num_replicas": 3}
    with RawNats(server.port, timeout=60) as raw:
        until(lambda: is_created(raw))
        asked_again(raw, "STREAM.CREATE.again", config)
        for _ in range(5):
            until(lambda: "error" not in asked(raw, "STREAM.INFO.again"))
            cluster.wait_isr("again")
            leader, lags = cluster.leader("again"), cluster.followers("again")[0]
            cluster.pause(lags)
            try:
                deleted = raw.request(f"liftlog.{NAME}.jsapi.{leader}.STREAM.DELETE.again", b"")
                assert json.loads(deleted.payload)["success"] is True
                reply, subject = raw.new_reply(), f"liftlog.{NAME}.jsapi.{lags}.STREAM.CREATE.again"
                raw.pub(subject, json.dumps(config).encode(), reply=reply)
            finally:
                cluster.resume(lags)
            created = json.loads(raw.next_message().payload)
            # A leader that is not ready in time is no defect: the stream is there.
            assert created.get("did_create") or created["error"]["code"] == 503, created
        asked_again(raw, "STREAM.DELETE.again")


async def test_an_ordered_consumer_goes_on_at_the_next_leader(
    cluster: Cluster, server: NatsServer
) -> None:
    """Its client hears no heartbeats when the leader dies, and makes it again until there is a
    leader: every record comes, once and in order, and the numbers that the consumer counts are
    without a gap at each of the two."""
    config = {"name": "read", "subjects": ["read.>"], "num_replicas": 3}
    client = await nats.connect(server.url)
    try:
        js = client.jetstream(timeout=2)
        with RawNats(server.port, timeout=60) as raw:
            asked_again(raw, "STREAM.CREATE.read", config)
        got: asyncio.Queue[Any] = asyncio.Queue()
        await js.subscribe(
            "read.>", stream="read", ordered_consumer=True, idle_heartbeat=0.5, cb=got.put
        )
        before = await published_and_read(js, got, range(50))
        leader = cluster.leader("read")
        await asyncio.to_thread(cluster.kill, leader)
        after = await published_and_read(js, got, range(50, 100))
        assert cluster.leader("read") != leader
        offsets = [one.metadata.sequence.stream for one in (*before, *after)]
        assert offsets == sorted(set(offsets))
        assert [one.metadata.sequence.consumer for one in before] == list(range(1, 51))
        second = [one.metadata.sequence.consumer for one in after]
        assert second == list(range(second[0], second[0] + 50))
    finally:
        await client.close()
    cluster.start(leader)
    await asyncio.to_thread(cluster.wait_isr, "read")


@pytest.fixture(scope="module")
def go_reader() -> Path:
    try:
        return client_publishers.go_reader()
    except building.Missing as why:
        pytest.skip(str(why))


def test_a_pull_ordered_consumer_goes_on_at_the_next_leader(
    cluster: Cluster, server: NatsServer, go_reader: Path
) -> None:
    """That of nats.go: every record comes once, in order, while messages keep coming and their
    stream gets another leader."""
    config = {"name": "pulled", "subjects": ["pulled"], "num_replicas": 3}
    count = 300
    with RawNats(server.port, timeout=60) as raw:
        until(
            lambda: asked(raw, "STREAM.CREATE.pulled", config).get("error", {}).get("code") != 503
        )
        offsets = [publish_until_acked(raw, "pulled", b"0", "0")["seq"]]
        with subprocess.Popen(
            [go_reader, server.url, "pulled"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as reader:
            assert reader.stdin is not None
            assert reader.stdout is not None
            found = [json.loads(reader.stdout.readline())]
            leader = cluster.leader("pulled")
            for number in range(1, count):
                if number == count // 3:
                    cluster.kill(leader)
                value = str(number)
                offsets.append(publish_until_acked(raw, "pulled", value.encode(), value)["seq"])
            found += [json.loads(reader.stdout.readline()) for _ in range(1, count)]
            reader.stdin.close()
            assert reader.stdout.read() == b""
            assert reader.wait(60) == 0
        assert cluster.leader("pulled") != leader
        assert [one["value"] for one in found] == [str(number) for number in range(count)]
        assert [one["offset"] for one in found] == offsets
    cluster.start(leader)
    cluster.wait_isr("pulled")


async def published_and_read(js: Any, got: asyncio.Queue[Any], numbers: range) -> list[Any]:
    """Each message is published until it is acked; a second attempt is the same message."""
    for number in numbers:
        while True:
            with contextlib.suppress(Error, asyncio.TimeoutError):
                await js.publish("read.a", b"%d" % number, headers={"Nats-Msg-Id": str(number)})
                break
    found = [await asyncio.wait_for(got.get(), 60) for _ in numbers]
    assert [int(one.data) for one in found] == list(numbers)
    return found
