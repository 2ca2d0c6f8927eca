"""The cluster on Kubernetes: the API server takes it, and its parts fit together and the nodes."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from support.repository import REPOSITORY

from acl.policy import Policy
from liftlog.server.life.embedded import find_nats_server
from liftlog.settings import Settings, load_settings

OBJECTS: list[dict[str, Any]] = list(
    yaml.safe_load_all((REPOSITORY / "config" / "kubernetes" / "cluster.yaml").read_text())
)
NODES, NATS = "liftlog-nodes", "nats-nodes"


def named(kind: str, name: str = "liftlog") -> Any:
    (found,) = [o for o in OBJECTS if o["kind"] == kind and o["metadata"]["name"] == name]
    return found


def container_of(kind: str, name: str) -> dict[str, Any]:
    (found,) = named(kind, name)["spec"]["template"]["spec"]["containers"]
    return dict(found)


def environment(container: dict[str, Any], **fields: str) -> dict[str, str]:
    """Of a pod whose fields have these values."""
    found: dict[str, str] = {}
    for one in container["env"]:
        if "value" in one:
            found[one["name"]] = re.sub(r"\$\((\w+)\)", lambda name: found[name[1]], one["value"])
        else:
            found[one["name"]] = fields[one["valueFrom"]["fieldRef"]["fieldPath"].split(".")[-1]]
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "liftlog.yaml"
    path.write_text(named("ConfigMap")["data"]["liftlog.yaml"])
    return path


@pytest.fixture
def settings(path: Path) -> Settings:
    env = environment(container_of("StatefulSet", "liftlog"), name="liftlog-1", namespace="prod")
    return load_settings(path, env)


@pytest.mark.parametrize(
    "found", OBJECTS, ids=[f"{o['kind']}-{o['metadata']['name']}" for o in OBJECTS]
)
def test_the_api_server_takes_it(found: dict[str, Any]) -> None:
    kubernetes_validate.validate(found, kubernetes_validate.latest_version(), strict=True)


def test_each_node_has_its_name_and_an_address_that_stays(settings: Settings) -> None:
    cluster = settings.cluster
    assert cluster is not None
    assert (cluster.node, cluster.store) == ("liftlog-1", "nats")
    assert cluster.advertise == f"tls://liftlog-1.{NODES}.prod.svc:9292"
    assert named("StatefulSet")["spec"]["serviceName"] == NODES
    for service in (NODES, NATS):
        spec = named("Service", service)["spec"]
        assert spec["clusterIP"] == "None"
        assert spec["publishNotReadyAddresses"], "a node is ready only when it has reached others"
    mounts = {one["mountPath"] for one in container_of("StatefulSet", "liftlog")["volumeMounts"]}
    for file in (cluster.token_file, cluster.tls_ca, settings.acl.file, settings.pull.tls.cert):
        assert str(Path(str(file)).parent) in mounts
    secret = named("Secret", "liftlog-acl")["stringData"]
    assert {Path(str(cluster.token_file)).name, Path(str(settings.acl.file)).name} == set(secret)
    assert (
        settings.drain_timeout_seconds * 2
        <= (named("StatefulSet")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"])
    )
    [stream] = settings.streams.values()
    assert (stream.replicas, stream.min_isr) == (3, 2)


def test_the_job_makes_the_bucket_of_the_same_cluster(path: Path, settings: Settings) -> None:
    container = container_of("Job", "liftlog-cluster-init")
    assert container["args"][:2] == ["cluster", "init"]
    made = load_settings(path, environment(container))
    assert made.cluster is not None
    assert settings.cluster is not None
    assert made.cluster.name == settings.cluster.name
    assert made.nats.servers == settings.nats.servers


@pytest.mark.parametrize("name", ["liftlog", "nats"])
def test_one_of_three_at_a_time_and_each_on_its_own_machine(name: str) -> None:
    found = named("StatefulSet", name)["spec"]
    assert found["replicas"] == 3
    assert found["podManagementPolicy"] == "Parallel"
    assert found.get("updateStrategy", {}).get("type", "RollingUpdate") == "RollingUpdate"
    assert named("PodDisruptionBudget", name)["spec"]["maxUnavailable"] == 1
    pod = found["template"]["spec"]
    [apart] = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    assert apart["labelSelector"]["matchLabels"] == found["selector"]["matchLabels"]
    assert found["template"]["metadata"]["labels"] == found["selector"]["matchLabels"]
    volumes = {one["name"] for one in (*pod["volumes"], *_claims(found))}
    assert {one["name"] for one in pod["containers"][0]["volumeMounts"]} == volumes


def _claims(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [one["metadata"] for one in found["volumeClaimTemplates"]]


def test_the_nodes_may_replicate_and_no_one_else() -> None:
    policy = Policy.load(named("Secret", "liftlog-acl")["stringData"]["acl.yaml"])
    for stream in ("orders", "_offsets"):
        assert policy.decide("node", "replicate", stream).allowed
        assert not policy.decide("billing", "replicate", stream).allowed
    assert not policy.allows_anonymous
    named_in_token = named("Secret", "liftlog-acl")["stringData"]["node.token"].split(".")[0]
    assert named_in_token == "node"


def test_the_nats_servers_keep_the_metadata(settings: Settings, tmp_path: Path) -> None:
    text = named("ConfigMap", "nats")["data"]["nats.conf"]
    assert "sync_interval: always" in text
    hosts = [f"nats-{number}.{NATS}" for number in range(3)]
    assert re.findall(r"nats://([\w.-]+):6222", text) == hosts
    assert settings.nats.servers == [f"nats://{host}:4222" for host in hosts]
    path = tmp_path / "nats.conf"
    path.write_text(text)
    env = environment(container_of("StatefulSet", "nats"), name="nats-0")
    check = [str(find_nats_server()), "-t", "-c", str(path)]
    subprocess.run(check, env=env, check=True, capture_output=True, timeout=60)


def test_who_reaches_whom() -> None:
    own = {"app.kubernetes.io/name": "liftlog"}
    liftlog, nats = named("NetworkPolicy"), named("NetworkPolicy", "nats")
    [pull, _] = liftlog["spec"]["ingress"]
    assert {"podSelector": {"matchLabels": own}} in pull["from"], "the other nodes"
    [clients, _] = nats["spec"]["ingress"]
    assert {"podSelector": {"matchLabels": own}} in clients["from"]
    assert {rule["port"] for rule in liftlog["spec"]["egress"][0]["ports"]} == {4222, 9292, 53}
    job = named("Job", "liftlog-cluster-init")["spec"]["template"]["metadata"]["labels"]
    assert {"podSelector": {"matchLabels": {"nats-client": "true"}}} in clients["from"]
    assert job["nats-client"] == "true"
    for policy in (liftlog, nats):
        assert all(rule["from"] for rule in policy["spec"]["ingress"]), "else everyone may"


def test_it_has_no_rights() -> None:
    for kind, name in (("StatefulSet", "liftlog"), ("StatefulSet", "nats"),
                       ("Job", "liftlog-cluster-init")):  # fmt: skip
        pod = named(kind, name)["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["automountServiceAccountToken"] is False
        assert container_of(kind, name)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_images() -> None:
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    for kind, name in (("StatefulSet", "liftlog"), ("Job", "liftlog-cluster-init")):
        assert container_of(kind, name)["image"] == f"liftlog:{version}"
    compose = (REPOSITORY / "docker-compose.yml").read_text()
    assert f"image: {container_of('StatefulSet', 'nats')['image']}\n" in compose
