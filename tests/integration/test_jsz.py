"""`/jsz`, the page by which other programs watch and scale workers: the fields are those of a real
JetStream, one node of a cluster describes the streams of all, and the ACL holds."""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.clients.ingesting import assert_no_traceback, until
from support.clients.raw_nats import RawNats
from support.daemons.cluster import Cluster
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.daemons.ports import free_port

from acl.tokens import hash_token

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

PATIENCE = 60
TOKEN = "0123456789abcdef0123"
FRESH_SECONDS = 1.5
"""A page may be a second old."""


class Page(NamedTuple):
    status: int
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


def get(address: str, query: str = "", **headers: str) -> Page:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE)
    try:
        connection.request("GET", f"/jsz{query}", headers=headers)
        answer = connection.getresponse()
        return Page(answer.status, answer.read().decode())
    finally:
        connection.close()


def lag_as_keda_reads_it(page: Any, account: str, stream: str, consumer: str) -> int:
    """The scaler nats-jetstream looks for the account, the stream and the consumer by their names.
    It falls back to the newest sequence of the stream."""
    (found,) = [one for one in page["account_details"] if one["name"] == account]
    (of_stream,) = [one for one in found["stream_detail"] if one["name"] == stream]
    for one in of_stream["consumer_detail"]:
        if one["name"] == consumer:
            return int(one["num_pending"] + one["num_ack_pending"])
    return int(of_stream["state"]["last_seq"])


def leafnode(server: NatsServer) -> str:
    found = re.search(r"Listening for leafnode connections on (\S+:\d+)", server.log)
    assert found is not None, server.log
    return found[1]


def asked(raw: RawNats, method: str, body: Any) -> Any:
    answer = raw.request(f"$JS.API.{method}", json.dumps(body).encode()).json()
    assert "error" not in answer, answer
    return answer


def work(raw: RawNats) -> None:
    """Five messages, of which a worker holds two and has acked one."""
    asked(raw, "STREAM.CREATE.orders", {"name": "orders", "subjects": ["orders.>"]})
    for number in range(5):
        assert "seq" in raw.request("orders.new", b"%d" % number).json()
    config = {"durable_name": "billing", "ack_policy": "explicit"}
    body = {"stream_name": "orders", "config": config}
    asked(raw, "CONSUMER.DURABLE.CREATE.orders.billing", body)
    raw.pub("$JS.API.CONSUMER.MSG.NEXT.orders.billing", b"3", reply=raw.new_reply())
    held = [raw.next_message() for _ in range(3)]
    raw.request(held[0].reply, b"+ACK")


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with NatsServer(leafnodes={"listen": "127.0.0.1:-1"}) as server:
        yield server


def started(server: NatsServer, **more: Any) -> Daemon:
    nats = {"jetstream_api": True, "leafnode": leafnode(server)}
    daemon = Daemon(server.url, {"nats": nats, **more})
    daemon.__enter__()
    until(lambda: "jetstream-api-answers" in daemon.log and "leaf-connected" in daemon.log)
    return daemon


def details(page: Any) -> tuple[Any, Any, Any]:
    account = page["account_details"][0]
    stream = account["stream_detail"][0]
    return account, stream, stream["consumer_detail"][0]


CHANGING = {"created", "ts", "now", "config", "cluster", "first_ts", "last_ts", "last_active"}
SIZES = {"bytes", "storage"}


def shown(value: Any) -> Any:
    """The fields that are equal on both sides: all but times, sizes and settings."""
    if isinstance(value, dict):
        return {name: shown(one) for name, one in value.items() if name not in CHANGING | SIZES}
    return value


def test_fields_and_figures_are_those_of_jetstream(server: NatsServer) -> None:
    monitoring = free_port()
    with (
        NatsServer(jetstream=True, http=f"127.0.0.1:{monitoring}") as real,
        RawNats(real.port, timeout=PATIENCE) as theirs,
        RawNats(server.port, timeout=PATIENCE) as ours,
    ):
        daemon = started(server)
        with daemon:
            pages = []
            for raw, address in ((theirs, f"127.0.0.1:{monitoring}"), (ours, daemon.http_address)):
                work(raw)
                pages.append(get(address, "?acc=$G&consumers=true&config=true"))
            assert [one.status for one in pages] == [200, 200]
            real_page, page = [one.json for one in pages]
            assert set(real_page) - {"limits"} <= set(page)
            for theirs_of, ours_of in zip(details(real_page), details(page), strict=True):
                assert set(theirs_of) <= set(ours_of)
            (_, their_stream, their_consumer), (_, stream, consumer) = map(
                details, (real_page, page)
            )
            assert shown(consumer) | {"cluster": 0} == shown(their_consumer) | {"cluster": 0}
            none_deleted = {"num_deleted": 0}
            assert shown(stream["state"]) == none_deleted | shown(their_stream["state"])
            assert set(their_stream["config"]) <= set(stream["config"]) | {"metadata"}
            for one in (real_page, page):
                assert lag_as_keda_reads_it(one, "$G", "orders", "billing") == 4
                assert lag_as_keda_reads_it(one, "$G", "orders", "other") == 5
                assert one["streams"] == one["consumers"] == one["total"] == 1
            assert_no_traceback(daemon)


QUERIES = [
    "", "?accounts=1", "?streams=true", "?consumers=T", "?acc=$G", "?config=1",
    "?consumers=1&offset=1", "?streams=0&accounts=F", "?consumers=x", "?offset=-1", "?unknown=1",
]  # fmt: skip


def shape(value: Any) -> Any:
    """The names of fields, without values; only those of nats-server that a reader can use."""
    if isinstance(value, dict):
        left_out = {"limits", "metadata", "config", "api", "last_active", "num_deleted"}
        return {name: shape(one) for name, one in value.items() if name not in left_out}
    return [shape(one) for one in value] if isinstance(value, list) else None


def test_each_query_means_what_it_means_there(server: NatsServer) -> None:
    monitoring = free_port()
    with (
        NatsServer(jetstream=True, http=f"127.0.0.1:{monitoring}") as real,
        RawNats(real.port, timeout=PATIENCE) as theirs,
        RawNats(server.port, timeout=PATIENCE) as ours,
        started(server) as daemon,
    ):
        for raw in (theirs, ours):
            work(raw)
        for query in QUERIES:
            expected = get(f"127.0.0.1:{monitoring}", query)
            page = get(daemon.http_address, query)
            assert page.status == expected.status, (query, page)
            if expected.status == 200:
                theirs_of, ours_of = shape(expected.json), shape(page.json)
                for account in ours_of.get("account_details", []):
                    for stream in account.get("stream_detail", []):
                        for consumer in stream.get("consumer_detail", []):
                            del consumer["cluster"]  # there only in a cluster
                assert ours_of == theirs_of, query
            else:
                assert page.text.split(":")[0] == expected.text.split(":")[0]
        account = get(daemon.http_address, "?acc=some.account").json["account_details"][0]
        assert account["name"] == account["id"] == "some.account"


def acl(file: Path) -> None:
    rule = {"allow": ["create", "read"], "streams": ["orders"], "attach": [">"]}
    role = {"allow": ["read"], "streams": ["orders"]}
    principals = {"alice": {"token_hash": hash_token(TOKEN)}}
    file.write_text(
        json.dumps(
            {
                "principals": principals,
                "roles": {"reader": [role]},
                "bindings": {"alice": ["reader"]},
                "nats": rule,
            }
        )
    )
    file.chmod(0o600)


def test_settings_are_for_those_who_may_read(server: NatsServer, tmp_path: Path) -> None:
    file = tmp_path / "acl.yaml"
    acl(file)
    streams = {"secret": {"subject": "secret.>"}}
    with (
        started(server, acl={"file": str(file)}, streams=streams) as daemon,
        RawNats(server.port, timeout=PATIENCE) as raw,
    ):
        work(raw)
        wanted = "?consumers=true&config=true"
        _, stream, consumer = details(get(daemon.http_address, wanted).json)
        assert "config" not in stream
        assert "config" not in consumer
        assert consumer["num_ack_pending"] == 2
        bearer = {"Authorization": f"Bearer alice.{TOKEN}"}
        page = get(daemon.http_address, wanted, **bearer)
        _, stream, consumer = details(page.json)
        assert stream["config"]["subjects"] == ["orders.>"]
        assert consumer["config"]["durable_name"] == "billing"
        # Section `nats` does not let clients of NATS read the other stream.
        assert "secret" not in page.text
        wrong = {"Authorization": f"Bearer alice.{TOKEN[:-1]}x"}
        assert get(daemon.http_address, wanted, **wrong).status == 401
        assert get(daemon.http_address, wanted, Host="evil.example").status == 403
        assert_no_traceback(daemon)


def test_it_says_why_it_has_nothing_to_show(server: NatsServer) -> None:
    with Daemon(server.url, {"nats": {"jetstream_api": False}}) as daemon:
        page = get(daemon.http_address, "?consumers=true")
        assert page.status == 503
        assert "nats.jetstream_api" in page.text


def test_any_node_describes_the_whole_cluster(server: NatsServer) -> None:
    settings = {"nats": {"jetstream_api": True, "leafnode": leafnode(server)}}
    with (
        Cluster(server.url, settings=settings) as cluster,
        RawNats(server.port, timeout=PATIENCE) as raw,
    ):
        for node in cluster.nodes.values():
            until(lambda node=node: "jetstream-api-answers" in node.log)
        names = [f"s{number}" for number in range(6)]
        for name in names:
            config = {"name": name, "subjects": [f"{name}.>"], "num_replicas": 3}
            until(lambda name=name, config=config: created(raw, name, config))
            until(lambda name=name: "seq" in raw.request(f"{name}.a", b"x").json())
            body = {
                "stream_name": name,
                "config": {"name": f"by-{name}", "ack_policy": "none", "mem_storage": True,
                           "inactive_threshold": 300 * 10**9},
            }  # fmt: skip
            asked(raw, f"CONSUMER.CREATE.{name}.by-{name}", body)
        time.sleep(FRESH_SECONDS)
        found = [
            get(node.http_address, "?consumers=true").json["account_details"][0]["stream_detail"]
            for node in cluster.nodes.values()
        ]
        for page in found:
            assert [one["name"] for one in page] == names
            assert [one["state"]["last_seq"] for one in page] == [1] * len(names)
            consumers = [one["consumer_detail"][0] for one in page]
            assert [one["name"] for one in consumers] == [f"by-{name}" for name in names]
            assert [one["num_pending"] for one in consumers] == [1] * len(names)
        leaders = [one["cluster"]["leader"] for one in found[0]]
        assert len(set(leaders)) > 1, "the test shows nothing if one node leads all"
        assert all(leaders == [one["cluster"]["leader"] for one in page] for page in found)
        for node in cluster.nodes.values():
            assert_no_traceback(node)


def created(raw: RawNats, name: str, config: Any) -> bool:
    payload = json.dumps(config).encode()
    return "error" not in raw.request(f"$JS.API.STREAM.CREATE.{name}", payload).json()
