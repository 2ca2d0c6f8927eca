"""docker-compose.yml: what an engine would refuse, and what it would accept and should not be."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from support.repository import REPOSITORY

from liftlog.server.life.embedded import find_nats_server
from liftlog.settings.addresses import parse_listen
from liftlog.settings.load import load_settings

COMPOSE = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]

# Of the Compose Specification; names that begin with x- are free at the top.
TOP = {"name", "services", "volumes", "networks", "configs", "secrets", "include"}
_SERVICE = """
    annotations attach blkio_config build cap_add cap_drop cgroup cgroup_parent command configs
    container_name cpu_count cpu_percent cpu_period cpu_quota cpu_rt_period cpu_rt_runtime
    cpu_shares cpus cpuset credential_spec depends_on deploy develop device_cgroup_rules devices
    dns dns_opt dns_search domainname entrypoint env_file environment expose extends
    external_links extra_hosts gpus group_add healthcheck hostname image init ipc isolation
    labels links logging mac_address mem_limit mem_reservation mem_swappiness memswap_limit
    network_mode networks oom_kill_disable oom_score_adj pid pids_limit platform ports
    post_start pre_stop privileged profiles provider pull_policy read_only restart runtime scale
    secrets security_opt shm_size stdin_open stop_grace_period stop_signal storage_opt sysctls
    tmpfs tty ulimits use_api_socket user userns_mode uts volumes volumes_from working_dir
"""
SERVICE = set(_SERVICE.split())
HEALTHCHECK = {
    "test": list,
    "interval": str,
    "timeout": str,
    "retries": int,
    "start_period": str,
    "start_interval": str,
    "disable": bool,
}
BUILD = {"context", "dockerfile", "target", "args"}
DURATION = re.compile(r"(\d+(us|ms|s|m|h))+")
CONDITIONS = {"service_started", "service_healthy", "service_completed_successfully"}


def volume_source(volume: str) -> str:
    return volume.partition(":")[0]


def test_only_what_the_specification_knows() -> None:
    assert {key for key in COMPOSE if not key.startswith("x-")} <= TOP
    for name, service in SERVICES.items():
        assert set(service) <= SERVICE, name
        if isinstance(service.get("build"), dict):
            assert set(service["build"]) <= BUILD
        assert service.get("restart", "no") in ("no", "always", "on-failure", "unless-stopped")
        for key in ("command", "profiles", "ports", "volumes"):
            assert all(isinstance(item, str) for item in service.get(key, [])), (name, key)
        for variable, value in service.get("environment", {}).items():
            # true or 1g would not arrive as written: YAML has its own types for them.
            assert isinstance(value, str), (name, variable)
        assert DURATION.fullmatch(service.get("stop_grace_period", "10s")), name


@pytest.mark.parametrize("name", [name for name, one in SERVICES.items() if "healthcheck" in one])
def test_health_checks(name: str) -> None:
    check = SERVICES[name]["healthcheck"]
    assert set(check) <= set(HEALTHCHECK)
    for key, value in check.items():
        assert isinstance(value, HEALTHCHECK[key]), key
        if HEALTHCHECK[key] is str:
            assert DURATION.fullmatch(value), key
    assert check["test"][0] in ("CMD", "CMD-SHELL")
    assert all(isinstance(item, str) for item in check["test"])


def test_what_a_service_waits_for_is_there_and_tells_its_health() -> None:
    waited = 0
    for name, service in SERVICES.items():
        for other, how in service.get("depends_on", {}).items():
            waited += 1
            assert other in SERVICES, name
            assert how["condition"] in CONDITIONS
            if how["condition"] == "service_healthy" and "build" not in SERVICES[other]:
                assert "healthcheck" in SERVICES[other], (name, other)
            # A profile that is on starts whatever its services wait for.
            assert set(SERVICES[other].get("profiles", [])) <= set(service.get("profiles", []))
    assert waited


def test_ports_are_published_on_loopback_only() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    for port in published:
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)
    on_host = [port.split(":")[1] for port in published]
    assert len(set(on_host)) == len(on_host)


def test_volumes_and_files_exist() -> None:
    used = set()
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume_source(volume)
            if source.startswith("."):
                assert (REPOSITORY / source).exists(), volume
            else:
                used.add(source)
        build = service.get("build")
        if build is not None:
            context, file = (build, None) if isinstance(build, str) else (build["context"], build)
            dockerfile = "Dockerfile" if file is None else file.get("dockerfile", "Dockerfile")
            assert (REPOSITORY / context / dockerfile).is_file()
    assert used == set(COMPOSE["volumes"])


def test_the_daemon_takes_its_settings() -> None:
    settings = load_settings(None, SERVICES["liftlog"]["environment"])
    assert set(settings.streams) == {"orders"}
    assert settings.nats.servers == ["nats://nats:4222"]


def test_the_cluster_profile() -> None:
    """Three servers, three nodes with a directory each, and who makes their metadata first."""
    members = {name: one for name, one in SERVICES.items() if "cluster" in one.get("profiles", [])}
    servers = {f"nats-{number}" for number in (1, 2, 3)}
    nodes = {f"node-{name}" for name in "abc"}
    assert set(members) == servers | nodes | {"cluster-init"}
    settings = {name: load_settings(None, members[name]["environment"]) for name in nodes}
    found = []
    for name, one in settings.items():
        assert one.cluster is not None
        assert (one.cluster.store, one.cluster.name) == ("nats", "compose")
        assert f"node-{one.cluster.node}" == name
        address = parse_listen(one.cluster.advertise)
        assert address.host == name
        assert [parse_listen(url).port for url in one.pull.listen] == [address.port]
        assert f"127.0.0.1:{address.port}:{address.port}" in members[name]["ports"]
        assert {urlsplit(url).hostname for url in one.nats.servers} == servers
        assert one.streams["orders"].replicas == 3
        assert list(members[name]["depends_on"]) == ["cluster-init"]
        found += members[name]["volumes"]
    assert len(set(found)) == 3
    init = members["cluster-init"]
    assert load_settings(None, init["environment"]).cluster is not None
    assert set(init["depends_on"]) == servers
    for name in servers:
        assert members[name]["environment"] == {"SERVER_NAME": name}
        assert f"{name}:/data" in members[name]["volumes"]


def test_nats_takes_the_configuration_of_its_cluster(tmp_path: Path) -> None:
    config = (REPOSITORY / "config/nats/cluster.conf").read_text()
    assert "sync_interval: always" in config
    assert all(f"nats://nats-{number}:6222" in config for number in (1, 2, 3))
    file = tmp_path / "cluster.conf"
    file.write_text(config.replace("/data", str(tmp_path)))
    checked = subprocess.run(
        [find_nats_server(), "-t", "-c", str(file)],
        env={"SERVER_NAME": "nats-1"},
        capture_output=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr


def test_the_spark_profile() -> None:
    """A master, two workers, one image, one lake; nothing of it starts unless it is asked for."""
    spark = {name: one for name, one in SERVICES.items() if "spark" in one.get("profiles", [])}
    assert set(spark) == {"spark-master", "spark-worker"}
    assert {one["image"] for one in spark.values()} == {"liftlog-spark"}
    assert all("lake:/lake" in one["volumes"] for one in spark.values())
    master, worker = spark["spark-master"], spark["spark-worker"]
    assert worker["deploy"] == {"replicas": 2}
    assert "container_name" not in worker  # two of one name there cannot be
    assert worker["command"] == ["worker", f"spark://{master['hostname']}:7077"]
    assert master["environment"]["SPARK_MASTER_HOST"] == master["hostname"] == "spark-master"
    assert {name for name, one in SERVICES.items() if "profiles" not in one} == {"nats", "liftlog"}
