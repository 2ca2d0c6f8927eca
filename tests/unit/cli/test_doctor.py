"""liftlog doctor: each check finds what it is there for."""

import os
import resource
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from acl.tokens import hash_token, new_secret
from liftlog.cli.doctor import FAILED, OK, WARNING, Checkup, machine, network, setup
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.root import cli
from liftlog.settings import Settings, load_settings


def settings(*overrides: str) -> Settings:
    return load_settings(None, {}, overrides)


def streams(**subjects: str) -> list[str]:
    return [f"streams.{name}.subject={subject}" for name, subject in subjects.items()]


def only(found: Any) -> Checkup:
    (one,) = found
    assert isinstance(one, Checkup)
    assert bool(one.advice) == (one.status in (WARNING, FAILED))
    return one


def test_streams_that_ack_the_same_message() -> None:
    apart = streams(a="orders.>", b="prices.>")
    assert only(setup.check_streams(settings(*apart))).status == OK
    both = streams(a="orders.>", b="orders.*")
    found = only(setup.check_streams(settings(*both)))
    assert found.status == WARNING
    assert "a (orders.>) and b (orders.*)" in found.detail
    assert only(setup.check_streams(settings(*both, "streams.b.acks=off"))).status == OK
    groups = ["streams.a.queue_group=g", "streams.b.queue_group=g"]
    one_group = settings(*streams(a="orders.>", b="orders.>"), *groups)
    assert only(setup.check_streams(one_group)).status == OK


def test_packages_that_the_configuration_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [one.status for one in setup.check_packages(settings())] == [OK, OK]
    monkeypatch.setattr(setup, "_version_of", lambda name: "" if name == "lz4" else "1.0")
    _, optional = setup.check_packages(settings(*streams(a="x"), "streams.a.compression=zstd"))
    assert optional.status == OK
    _, optional = setup.check_packages(settings(*streams(a="x"), "streams.a.compression=lz4"))
    assert (optional.status, optional.advice) == (FAILED, "pip install 'liftlog[compression]'")


def test_who_may_connect(tmp_path: Path) -> None:
    assert only(setup.check_access(settings())).status == OK
    everywhere = ("pull.listen=tcp://0.0.0.0:9292", "allow_anonymous=true")
    assert "may read and delete" in only(setup.check_access(settings(*everywhere))).detail
    acl = tmp_path / "acl.yaml"
    principal = f"{{a: {{token_hash: '{hash_token(new_secret())}'}}}}"
    acl.write_text(f"principals: {principal}\nroles: {{}}\nbindings: {{}}\n")
    guarded = settings(*everywhere, f"acl.file={acl}")
    pull, http = setup.check_access(settings(*everywhere, f"acl.file={acl}", "http.listen=:8292"))
    assert (pull.status, http.status) == (WARNING, WARNING)
    assert pull.detail == "tokens and records are sent unencrypted over tcp://0.0.0.0:9292"
    assert http.detail == "tokens are sent unencrypted over http://:8292"
    assert only(setup.check_access(guarded)).detail == pull.detail
    acl.write_text("nonsense: 1\n")
    assert only(setup.check_access(guarded)).status == FAILED


def by_name(found: Any) -> dict[str, Checkup]:
    return {one.check: one for one in found}


def test_the_data_directory(tmp_path: Path) -> None:
    path = tmp_path / "data"
    found = by_name(machine.check_data_dir(settings(f"data_dir={path}/below")))
    assert found["data_dir"].status == OK
    assert "will be created" in found["data_dir"].detail
    path.mkdir()
    path.chmod(0o777)
    found = by_name(machine.check_data_dir(settings(f"data_dir={path}")))
    assert (found["data_dir"].status, found["data_dir"].advice) == (WARNING, f"chmod o-w {path}")
    (tmp_path / "file").write_text("")
    found = by_name(machine.check_data_dir(settings(f"data_dir={tmp_path}/file")))
    assert found["data_dir"].status == FAILED
    found = by_name(machine.check_data_dir(settings(f"data_dir={tmp_path}/{'x' * 300}")))
    assert found["data_dir"].status == FAILED
    assert "File name too long" in found["data_dir"].detail


def test_memory_is_no_disk() -> None:
    if " /dev/shm tmpfs " not in Path("/proc/mounts").read_text():
        pytest.skip("no tmpfs at /dev/shm")
    found = by_name(machine.check_data_dir(settings("data_dir=/dev/shm/liftlog")))
    assert found["file system"].status == FAILED
    assert "memory" in found["file system"].detail


@pytest.mark.parametrize(("free_blocks", "status"), [(50, OK), (5, WARNING), (0, FAILED)])
def test_room(
    free_blocks: int, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gib = 1 << 30
    fields = (gib, gib, 100, free_blocks, free_blocks, 9, 9, 9, 0, 255)
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(fields))
    found = by_name(machine.check_data_dir(settings(f"data_dir={tmp_path}")))
    assert found["free space"].status == status


def test_syncs_are_measured_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (calls.append(fd), real(fd)))
    found = only(machine.check_sync(settings(f"data_dir={tmp_path}")))
    assert "ms" in found.detail
    assert len(calls) == 32
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(machine, "measure_syncs", lambda path: [0.2] * 3)
    assert only(machine.check_sync(settings(f"data_dir={tmp_path}"))).status == WARNING


def test_file_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda what: (1024, 4096))
    found = only(machine.check_file_descriptors(settings()))
    assert found.status == WARNING
    assert "ulimit -n 1472" in found.advice
    monkeypatch.setattr(resource, "getrlimit", lambda what: (200, 200))
    assert only(machine.check_file_descriptors(settings())).status == FAILED
    monkeypatch.setattr(resource, "getrlimit", lambda what: (1024, 4096))
    few = settings("pull.max_connections=100", "http.max_connections=10")
    assert only(machine.check_file_descriptors(few)).status == OK


def test_the_boot_id(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert only(machine.check_boot_id()).status == OK
    monkeypatch.setattr("liftlog.log.files.acked_end._BOOT_ID", tmp_path / "hidden")
    found = only(machine.check_boot_id())
    assert found.status == WARNING
    assert "ProcSubset" in found.advice


def test_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    for known, status in ((True, OK), (False, WARNING)):
        monkeypatch.setattr(machine, "_is_synchronised", lambda known=known: known)
        assert only(machine.check_clock()).status == status
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    assert only(machine.check_clock()).status == FAILED


def test_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_SECONDS", 0.2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        chosen = settings(f"pull.listen=tcp://127.0.0.1:{port}", "http.listen=127.0.0.1:0")
        pull, http = network.check_ports(chosen)
    assert (pull.status, http.status) == (WARNING, OK)
    assert f"127.0.0.1:{port} is in use" in pull.detail
    lost = settings("pull.listen=unix:///nowhere/liftlog.sock", "http.listen=null")
    assert only(network.check_ports(lost)).status == FAILED


def test_ports_of_another_program_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It speaks HTTP, but is not liftlog."""
    monkeypatch.setattr(network, "_SECONDS", 0.5)
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        try:
            port = other.server_address[1]
            chosen = settings(
                f"pull.listen=tcp://127.0.0.1:{port}", f"http.listen=127.0.0.1:{port}"
            )
            found = list(network.check_ports(chosen))
        finally:
            other.shutdown()
    assert [one.status for one in found] == [WARNING, WARNING]


def test_a_wrong_configuration_ends_it() -> None:
    result = CliRunner().invoke(cli, ["doctor", "--set", "nmae=x", "-o", "json"])
    assert result.exit_code == ExitCode.FAILED
    assert "did you mean" in result.stdout
    assert "fdatasync" not in result.stdout


def test_a_port_where_no_nats_server_answers() -> None:
    """In a process of its own: nats-py leaves the socket open that it gave up."""
    code = """
import sys
from liftlog.cli.doctor import network
from liftlog.settings import load_settings

network._SECONDS = 0.2
settings = load_settings(None, {}, [f"nats.servers=nats://127.0.0.1:{sys.argv[1]}"])
for found in network.check_nats(settings):
    print(found.status, found.detail)
"""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = subprocess.run(
            [sys.executable, "-c", code, str(silent.getsockname()[1])],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.stdout.startswith(FAILED), done.stderr
    assert "does not answer like a NATS server" in done.stdout


def test_no_nats_is_a_failure_and_no_password_is_shown(tmp_path: Path) -> None:
    arguments = ["doctor", "--set", "nats.servers=nats://me:hush@127.0.0.1:1"]
    result = CliRunner().invoke(cli, [*arguments, "--set", f"data_dir={tmp_path}"])
    assert result.exit_code == ExitCode.FAILED
    assert "me:********@127.0.0.1:1" in result.stdout
    assert "hush" not in result.output
