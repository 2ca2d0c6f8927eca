"""The bucket of a cluster is lost, and `cluster init` is run: no other cluster takes its place."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.clients.ingesting import until
from support.clients.store_campaign import eventually
from support.daemons.cluster import NODES, Cluster, TimedPublisher, assert_kept
from support.daemons.nats_cluster import NatsCluster
from support.daemons.nats_server import NatsServer

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.server.metadata.kv_link import KvLink
from liftlog.settings import NatsSettings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

STREAMS: dict[str, dict[str, Any]] = {"all": {"subject": "all.>", "replicas": 3, "min_isr": 2}}
PATIENCE = 60.0


@pytest.fixture
def servers() -> Iterator[list[NatsServer]]:
    with NatsCluster(3, jetstream=True, sync_always=True) as cluster:
        yield cluster.servers


@pytest.fixture
def cluster(servers: list[NatsServer]) -> Iterator[Cluster]:
    urls = [server.url for server in servers]
    store = {"name": "prod", "store": "nats", "session": "15s"}
    with Cluster(urls, STREAMS, cluster=store) as cluster:
        cluster.wait_isr("all")
        yield cluster
        cluster.assert_sound()


def ask(servers: list[NatsServer], what: str, question: bytes = b"") -> dict[str, Any]:
    """Ask JetStream about the bucket."""

    async def run() -> dict[str, Any]:
        link = KvLink(NatsSettings(), [one.url for one in servers], "unused")
        link.start()
        await link.wait_connected(PATIENCE)
        subject = f"$JS.API.STREAM.{what}.KV_liftlog_prod"
        try:
            answer = await eventually(lambda: link.ask(subject, question, json.loads, seconds=3))
        finally:
            await link.close()
        assert isinstance(answer, dict)
        return answer

    return asyncio.run(run())


def keys(servers: list[NatsServer]) -> set[str]:
    """The keys of the bucket, without the barriers that come and go."""
    found = ask(servers, "INFO", b'{"subjects_filter": ">"}')["state"].get("subjects", {})
    names = {one.removeprefix("$KV.liftlog_prod.") for one in found}
    return {one for one in names if not one.startswith("barrier.")}


def init(cluster: Cluster, config: Path, *more: str) -> tuple[int, str]:
    done = cluster.command("cluster", "init", "-c", str(config), *more)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.long
def test_a_lost_bucket_is_made_again_for_the_same_cluster_only(
    cluster: Cluster, servers: list[NatsServer], tmp_path: Path
) -> None:
    publisher = TimedPublisher(servers[0].port, "all.x", in_flight=20)
    publisher.start()

    def wait_acked(more: int) -> None:
        wanted = len(publisher.acked) + more
        until(lambda: publisher.error or len(publisher.acked) >= wanted, PATIENCE)
        if publisher.error is not None:
            raise publisher.error

    wait_acked(100)
    assert ask(servers, "DELETE")["success"]
    config = cluster.nodes["b"].config_path

    code, said = init(cluster, config)
    assert code == ExitCode.CONFIG, said
    assert "belongs to node b of cluster" in said
    assert "--again" in said
    assert "error" in ask(servers, "INFO"), "no bucket was made"

    # On a machine that has no data directory, the command cannot know.
    elsewhere = tmp_path / "elsewhere.yaml"
    settings = {**cluster.nodes["b"].settings, "data_dir": str(tmp_path / "empty")}
    elsewhere.write_text(yaml.safe_dump(settings))
    code, said = init(cluster, elsewhere)
    assert code == ExitCode.OK, said
    until(
        lambda: all("metadata-store-is-another" in cluster.nodes[name].log for name in NODES),
        PATIENCE,
        "each node has noticed",
    )
    wait_acked(300)  # they go on, as without the bucket
    time.sleep(4)  # longer than between two renewals of a session
    assert keys(servers) == {"cluster"}, "and store nothing in it"
    until(lambda: cluster.status()[1] == ExitCode.FAILED, PATIENCE, "each session has ended")

    cluster.kill("c")
    cluster.nodes["c"].spawn()
    assert cluster.nodes["c"].wait(PATIENCE).exit_code == ExitCode.CONFIG
    assert "init -c FILE --again" in cluster.nodes["c"].log_tail(3)
    code, said = init(cluster, config)
    assert code == ExitCode.CONFIG, said
    assert "--again" in said

    epoch = cluster.stream("all").leader_epoch
    code, said = init(cluster, config, "--again")
    assert code == ExitCode.OK, said
    until(lambda: cluster.stream("all").leader_epoch > epoch, PATIENCE, "a restored record")
    cluster.start("c")
    wait_acked(100)
    cluster.wait_isr("all")
    code, said = init(cluster, config)
    assert (code, "is left as it is" in said) == (ExitCode.OK, True), said

    assert ask(servers, "PURGE")["success"]  # the bucket is there, and nothing is in it
    code, said = init(cluster, config)
    assert (code, "whose metadata store is gone" in said) == (ExitCode.CONFIG, True), said
    code, said = init(cluster, config, "--again")
    assert code == ExitCode.OK, said
    wait_acked(100)
    cluster.wait_isr("all")
    publisher.finish()
    assert_kept([publisher], cluster.read_all("all"))
