"""The StatefulSet: the API server takes it, and its parts fit together and the daemon."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from support.repository import REPOSITORY

from acl.policy import Policy
from liftlog.settings import Settings, load_settings

OBJECTS: list[dict[str, Any]] = list(
    yaml.safe_load_all((REPOSITORY / "config" / "kubernetes" / "liftlog.yaml").read_text())
)


def named(kind: str, name: str = "liftlog") -> Any:
    (found,) = [o for o in OBJECTS if o["kind"] == kind and o["metadata"]["name"] == name]
    return found


SET = named("StatefulSet")["spec"]
POD = SET["template"]["spec"]
CONTAINER = POD["containers"][0]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    path = tmp_path / "liftlog.yaml"
    path.write_text(named("ConfigMap")["data"]["liftlog.yaml"])
    return load_settings(path, {})


@pytest.mark.parametrize(
    "found", OBJECTS, ids=[f"{o['kind']}-{o['metadata']['name']}" for o in OBJECTS]
)
def test_the_api_server_takes_it(found: dict[str, Any]) -> None:
    kubernetes_validate.validate(found, kubernetes_validate.latest_version(), strict=True)


def test_the_schema_finds_what_is_wrong() -> None:
    wrong = {**named("StatefulSet"), "spec": {**SET, "replica": 1}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)


def test_the_daemon_takes_its_settings(settings: Settings) -> None:
    grace = POD["terminationGracePeriodSeconds"]
    assert settings.drain_timeout_seconds * 2 <= grace
    mounts = {one["mountPath"]: one["name"] for one in CONTAINER["volumeMounts"]}
    volumes = {one["name"]: one for one in POD["volumes"]}
    claims = {one["metadata"]["name"] for one in SET["volumeClaimTemplates"]}
    assert set(mounts.values()) == {*volumes, *claims}
    assert mounts[str(settings.data_dir)] in claims
    assert settings.acl.file is not None
    secret = volumes[mounts[str(settings.acl.file.parent)]]["secret"]
    assert settings.acl.file.name in named("Secret", secret["secretName"])["stringData"]
    config = Path(CONTAINER["args"][-1])
    configmap = volumes[mounts[str(config.parent)]]["configMap"]
    assert config.name in named("ConfigMap", configmap["name"])["data"]
    # A mount below another, read-only one has no directory to be mounted on.
    paths = [Path(path) for path in mounts]
    assert not any(one in other.parents for one in paths for other in paths)


def test_the_acl_is_one() -> None:
    policy = Policy.load(named("Secret", "liftlog-acl")["stringData"]["acl.yaml"])
    assert policy.decide("billing", "read", "orders").allowed
    assert not policy.decide("billing", "delete", "orders").allowed
    assert not policy.allows_anonymous


def test_ports(settings: Settings) -> None:
    ports = {one["name"]: one["containerPort"] for one in CONTAINER["ports"]}
    assert settings.pull.listen == [f"tls://0.0.0.0:{ports['pull']}"]
    assert settings.http.listen == f"0.0.0.0:{ports['http']}"
    for one in OBJECTS:
        if one["kind"] == "Service":
            assert {port["targetPort"] for port in one["spec"]["ports"]} <= set(ports)
    assert named("Service", SET["serviceName"])["spec"]["clusterIP"] == "None"
    annotations = SET["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(ports["http"])
    ingress = named("NetworkPolicy")["spec"]["ingress"]
    assert {port["port"] for rule in ingress for port in rule["ports"]} == set(ports)


def test_no_token_travels_in_clear_nor_from_any_pod(settings: Settings) -> None:
    assert all(url.startswith("tls://") for url in settings.pull.listen)
    assert not settings.http.web
    assert not settings.http.log_api
    secret = {one["name"]: one for one in POD["volumes"]}["tls"]["secret"]["secretName"]
    (mount,) = [one["mountPath"] for one in CONTAINER["volumeMounts"] if one["name"] == "tls"]
    tls = settings.pull.tls
    assert (str(tls.cert), str(tls.key)) == (f"{mount}/tls.crt", f"{mount}/tls.key")
    assert secret == "liftlog-tls"
    for rule in named("NetworkPolicy")["spec"]["ingress"]:
        assert rule["from"], "an empty list lets everybody in"


def test_probes() -> None:
    live, ready = CONTAINER["livenessProbe"], CONTAINER["readinessProbe"]
    assert live["httpGet"]["path"] == "/livez"  # /readyz would restart it because NATS is away
    assert ready["httpGet"]["path"] == "/readyz"


def test_it_has_no_rights() -> None:
    assert POD["securityContext"]["runAsNonRoot"]
    dockerfile = (REPOSITORY / "Dockerfile").read_text()
    user = re.findall(r"^USER (\d+):(\d+)$", dockerfile, re.MULTILINE)[-1]
    context = POD["securityContext"]
    assert (str(context["runAsUser"]), str(context["runAsGroup"])) == user
    assert context["fsGroup"] == context["runAsGroup"]
    assert CONTAINER["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert POD["automountServiceAccountToken"] is False


def test_labels_and_version() -> None:
    labels = SET["selector"]["matchLabels"]
    assert SET["template"]["metadata"]["labels"] == labels
    for one in OBJECTS:
        assert one["metadata"]["labels"] == labels
        if one["kind"] == "Service":
            assert one["spec"]["selector"] == labels
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    assert CONTAINER["image"] == f"liftlog:{version}"
