"""The real daemon with an ACL: the how-to page as it stands, reloads, and what is hostile."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.clients.ingesting import assert_no_traceback, until
from support.clients.opened_client import router_of
from support.clients.raw_nats import RawNats, pub_frame
from support.daemons.certificates import Authority
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.repository import REPOSITORY

from acl.tokens import hash_token
from liftlog.client import connect_sync
from liftlog.errors import ConnectionLost, Forbidden, LiftlogError, Unauthenticated

pytestmark = pytest.mark.integration

PAGE = (REPOSITORY / "docs/how-to/secure.md").read_text()
SECRET = "a-secret-that-is-long-enough"
OTHER = "another-secret-that-is-long"


# --- the page -----------------------------------------------------------------------------


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def run(script: str, directory: Path, **environment: str) -> str:
    """A script of the page. A line with `!` in front has to fail, which `set -e` does not see."""
    strict = re.sub(
        r"^! (.*)$", r"if \1; then echo 'it was allowed: \1' >&2; exit 99; fi", script, flags=re.M
    )
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", strict],
        cwd=directory,
        env={
            "PATH": f"{directory}/bin:/usr/bin:/bin",
            "PYTHONPATH": str(REPOSITORY),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_the_how_to_page(server: NatsServer, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "python").symlink_to(sys.executable)
    command = tools / "liftlog"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m liftlog "$@"\n')
    command.chmod(0o755)
    certificates, people, questions, clients, change = blocks("sh")
    run(certificates + people, tmp_path)
    answers = run(questions, tmp_path).splitlines()
    told = blocks("text")[0]
    assert [line for line in answers if line.startswith(("allowed", "denied"))] == told.splitlines()

    text = blocks("yaml")[0].replace("/run/liftlog/pull.sock", f"{tmp_path}/pull.sock")
    settings = yaml.safe_load(re.sub(r"127\.0\.0\.1:929[23]", "127.0.0.1:0", text))
    settings["acl"]["file"] = str(tmp_path / "acl.yaml")
    for key in ("cert", "key", "client_ca"):
        settings["pull"]["tls"][key] = str(tmp_path / settings["pull"]["tls"][key])
    with Daemon(server.url, settings) as daemon:
        tcp, tls, unix = json.loads(daemon.addresses_path.read_text())["pull"]
        clients = clients.replace("tcp://127.0.0.1:9292", tcp)
        clients = clients.replace("tls://localhost:9293", tls.replace("127.0.0.1", "localhost"))
        clients = clients.replace("unix:///run/liftlog/pull.sock", unix)
        create, rest = clients.split("\n\n", 1)
        run(create, tmp_path)
        with RawNats(server.port) as raw:
            raw.send(pub_frame("orders.eu.1", b"mine") + pub_frame("orders.us.1", b"not mine"))
            raw.ping()
        with connect_sync(tcp, nkey=tmp_path / "ops.nk") as ops:
            until(lambda: ops.describe_stream("orders").high_watermark == 3)
        printed = run(create.splitlines()[0] + "\n" + rest, tmp_path)
        assert "mine" in printed
        assert "not mine" not in printed
        run(change, tmp_path, DAEMON_PID=str(daemon.pid))
        until(lambda: "reloaded" in daemon.log)
        assert_no_traceback(daemon)
        secrets = [
            json.loads((tmp_path / "billing.json").read_text())["token"].split(".", 1)[1],
            (tmp_path / "ops.nk").read_text().strip(),
        ]
        for secret in (*secrets, "argon2id"):
            assert secret not in daemon.log
            assert secret not in daemon.get("/metrics")[1]
        assert "logged-in" in daemon.log


# --- reloads --------------------------------------------------------------------------------


def acl_text(secret: str, rules: str = "allow: [read], streams: ['*']") -> str:
    return textwrap.dedent(
        f"""
        principals:
          shop: {{token_hash: "{hash_token(secret)}"}}
          watcher: {{token_hash: "{hash_token(OTHER)}"}}
        roles:
          look: [{{{rules}}}]
          watch: [{{allow: [read], streams: ["*"]}}]
        bindings: {{shop: [look], watcher: [watch]}}
        """
    )


def reload(daemon: Daemon) -> str:
    """What the log says of it."""
    before = len(daemon.log)
    os.kill(daemon.pid, signal.SIGHUP)
    until(lambda: re.search(r"\breloaded\b", daemon.log[before:]))
    return daemon.log[before:]


@pytest.fixture
def guarded(server: NatsServer, tmp_path: Path) -> Iterator[tuple[Daemon, Path]]:
    file = tmp_path / "acl.yaml"
    file.write_text(acl_text(SECRET))
    settings = {
        "acl": {"file": str(file)},
        "http": {"log_api": True},
        "streams": {"orders": {"subject": "reloaded.>"}},
    }
    with Daemon(server.url, settings) as daemon:
        yield daemon, file
        assert_no_traceback(daemon)
        for secret in (SECRET, OTHER, hash_token(SECRET)):
            assert secret not in daemon.log


def test_a_new_acl_holds_and_a_bad_one_does_not(guarded: tuple[Daemon, Path]) -> None:
    daemon, file = guarded
    address = daemon.pull_address
    shop = connect_sync(address, token=f"shop.{SECRET}", reconnect_for=0)
    watcher = connect_sync(address, token=f"watcher.{OTHER}", reconnect_for=0)
    assert shop.describe_stream("orders").name == "orders"

    file.write_text(acl_text(SECRET, "allow: [commit], streams: ['*']"))
    reload(daemon)
    with pytest.raises(Forbidden):
        shop.describe_stream("orders")
    assert watcher.describe_stream("orders").name == "orders"

    for bad in ("principals: {shop: {token_hash: hunter2}}", "\xff", "a: [", "x" * 5_000_000):
        file.write_text(bad, encoding="latin-1")
        said = reload(daemon)
        assert "reload-refused" in said
        assert "acl.file" in said
        assert "hunter2" not in said
        assert len(said) < 5_000
    file.unlink()
    assert "cannot read" in reload(daemon)
    assert watcher.describe_stream("orders").name == "orders"
    with pytest.raises(Forbidden):
        shop.describe_stream("orders")

    file.write_text(acl_text(OTHER + "-new"))
    reload(daemon)
    assert watcher.describe_stream("orders").name == "orders"
    with pytest.raises((Unauthenticated, ConnectionLost)):
        shop.describe_stream("orders")
    with pytest.raises(Unauthenticated):
        connect_sync(address, token=f"shop.{SECRET}")
    connect_sync(address, token=f"shop.{OTHER}-new").close()
    watcher.close()
    shop.close()


def test_a_reload_under_load_drops_nothing(
    guarded: tuple[Daemon, Path], server: NatsServer
) -> None:
    daemon, file = guarded
    count, found, failed = 2000, [], []

    def read() -> None:
        try:
            with connect_sync(
                daemon.pull_address, token=f"watcher.{OTHER}", reconnect_for=0
            ) as client:
                found.extend([one.value for one in client.read("orders", until=count + 1)])
        except LiftlogError as error:
            failed.append(error)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    with RawNats(server.port) as raw:
        for number in range(count):
            raw.send(pub_frame("reloaded.x", b"%d" % number))
            if number % 200 == 0:
                raw.ping()
                file.write_text(acl_text(SECRET + str(number)))
                os.kill(daemon.pid, signal.SIGHUP)
        raw.ping()
    for reader in readers:
        reader.join(60)
        assert not reader.is_alive()
    assert not failed
    assert sorted(found) == sorted([b"%d" % number for number in range(count)] * len(readers))


def served_certificate(address: str) -> bytes:
    host, port = address.removeprefix("tls://").rsplit(":", 1)
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate((host, int(port))))


def test_new_certificates_hold_for_new_connections(server: NatsServer, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    first, second = authority.issue("first"), authority.issue("second")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    shutil.copy(first.cert, cert)
    shutil.copy(first.key, key)
    settings = {
        "pull": {"listen": ["tls://127.0.0.1:0"], "tls": {"cert": str(cert), "key": str(key)}}
    }
    with Daemon(server.url, settings) as daemon:
        old = connect_sync(daemon.pull_address, tls=authority.ca, reconnect_for=0)
        assert served_certificate(daemon.pull_address) == ssl.PEM_cert_to_DER_cert(
            first.cert.read_text()
        )
        shutil.copy(second.cert, cert)  # the key still is the first one's
        said = reload(daemon)
        assert "reload-refused" in said
        assert "pull.tls" in said
        connect_sync(daemon.pull_address, tls=authority.ca).close()
        shutil.copy(second.key, key)
        reload(daemon)
        assert served_certificate(daemon.pull_address) == ssl.PEM_cert_to_DER_cert(
            second.cert.read_text()
        )
        old.ping()
        old.close()
        connect_sync(daemon.pull_address, tls=authority.ca).close()
        assert_no_traceback(daemon)


# --- what is hostile ----------------------------------------------------------------------------


def http(daemon: Daemon, path: str, *headers: str) -> int:
    """Straight through curl-like bytes, so that headers may be anything."""
    import socket

    host, port = daemon.http_address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), 10) as sock:
        lines = [f"GET {path} HTTP/1.1", f"Host: {daemon.http_address}", *headers]
        sock.sendall("\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1"))
        answer = b""
        while data := sock.recv(65536):
            answer += data
    return int(answer.split(b" ", 2)[1])


def test_tokens_over_http(guarded: tuple[Daemon, Path]) -> None:
    daemon, _ = guarded
    path = "/api/v1/streams/orders/bounds"
    good = f"Authorization: Bearer shop.{SECRET}"
    assert http(daemon, path, good) == 200
    assert http(daemon, path) == 401
    for bad in (
        "Authorization: Bearer shop.wrong",
        "Authorization: Basic c2hvcDpzZWNyZXQ=",
        "Authorization: Bearer " + "x" * 4000,
        "Authorization: Bearer \xff\xfe",
    ):
        assert http(daemon, path, bad) in (400, 401), bad
    codes = [http(daemon, path, "Authorization: Bearer shop.guess") for _ in range(12)]
    assert codes[-1] == 429
    assert http(daemon, path, good) == 429, "who guesses and who knows look the same from here"
    good = f"Authorization: Bearer watcher.{OTHER}"
    assert http(daemon, path, good) == 200
    assert http(daemon, "/api/v1/streams/%2e%2e%2fetc/bounds", good) in (400, 404)
    assert http(daemon, "/api/v1/streams/a%0d%0aevil/bounds", good) in (400, 404)
    assert "evil" not in "".join(re.findall(r"^evil.*$", daemon.log, re.M))


def test_nothing_secret_in_what_a_daemon_shows(guarded: tuple[Daemon, Path]) -> None:
    daemon, _ = guarded
    with connect_sync(daemon.pull_address, token=f"shop.{SECRET}") as client:
        shown: list[Any] = [client.metadata(), client.server, client.describe_stream("orders")]
        assert SECRET not in repr(shown)
        assert SECRET not in repr(client.__dict__)
        assert SECRET not in repr(router_of(client).target)
    for path in ("/metrics", "/readyz", "/livez"):
        text = daemon.get(path)[1]
        assert SECRET not in text
        assert hash_token(SECRET) not in text


@pytest.mark.parametrize(
    ("login", "style"), [("carrier:s3cret-of-carrier", "json"), ("s3cret-of-a-token", "pretty")]
)
def test_a_login_in_the_address_of_nats_is_shown_nowhere(login: str, style: str) -> None:
    """Neither when it connects, nor when NATS goes, comes back, and refuses it."""
    user, colon, password = login.partition(":")
    auth = {"user": user, "password": password} if colon else {"token": login}
    with NatsServer(authorization=auth) as nats:
        url = nats.url.replace("://", f"://{login}@")
        settings = {"logging": {"format": style, "level": "debug"}}
        with Daemon(url, settings) as daemon:
            nats.restart()
            until(lambda: daemon.metric("liftlog_nats_disconnects_total") >= 1)
            until(lambda: daemon.ready)
            with connect_sync(daemon.pull_address) as client:
                shown = [daemon.log, repr(client.metadata())]
            shown += [daemon.get(path)[1] for path in ("/metrics", "/readyz", "/ui/health")]
            assert "nats-connected" in daemon.log
        assert not [text for text in shown if "s3cret" in text]
