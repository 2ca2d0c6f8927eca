"""Every surface shows every condition: one list, wherever an operator looks first."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner
from support.daemons import ill_daemon
from support.daemons.daemon import Daemon
from support.daemons.ill_daemon import NODE, STREAM, words_of
from support.daemons.nats_server import NatsServer
from support.repository import REPOSITORY

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.root import cli
from liftlog.client import connect_sync
from liftlog.server.streams.description import _SHOWN_APART
from liftlog.server.vitals.conditions import KINDS, About, Severity
from liftlog.server.web.site import PAGES

pytestmark = pytest.mark.integration

ALL = ",".join(one.value for one in Severity)


class IllDaemon(Daemon):
    severities: ClassVar[str]

    @classmethod
    def with_all(cls, severities: str) -> type[IllDaemon]:
        program = (sys.executable, ill_daemon.__file__, severities, "serve")
        return type("Ill", (cls,), {"program": program})


@contextmanager
def running(server: NatsServer, severities: str) -> Iterator[Daemon]:
    ill = IllDaemon.with_all(severities)
    settings = {"streams": {STREAM: {"subject": "orders.>"}}}
    environ = {"PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests'}"}
    daemon = ill(server.url, settings, environ=environ).spawn()
    try:
        daemon.wait_listening()
        yield daemon
    finally:
        daemon.stop()
        daemon.__exit__(None, None, None)


@pytest.fixture(scope="module")
def daemon(server: NatsServer) -> Iterator[Daemon]:
    with running(server, ALL) as found:
        yield found


def command(daemon: Daemon, *words: str, http: bool = False) -> Any:
    where = ["--http", daemon.http_address] if http else ["--server", daemon.pull_address]
    return CliRunner().invoke(cli, [*words, *where])


def metadata(daemon: Daemon) -> str:
    with connect_sync(daemon.pull_address) as client:
        return json.dumps(client.metadata().conditions)


def metrics(daemon: Daemon) -> str:
    """The words of each kind that the metrics count."""
    return " ".join(
        words_of(name)
        for name, kind in KINDS.items()
        if daemon.metric("liftlog_conditions", condition=name, severity=kind.severity.value) >= 1
    )


SURFACES: dict[str, Callable[[Daemon], str]] = {
    "/readyz": lambda daemon: daemon.get("/readyz")[1],
    "metrics": metrics,
    "metadata": metadata,
    "health": lambda daemon: command(daemon, "health").stdout,
    "health --http": lambda daemon: command(daemon, "health", http=True).stdout,
    "health -o json": lambda daemon: command(daemon, "health", "-o", "json").stdout,
    "info": lambda daemon: command(daemon, "info").stdout,
    "top": lambda daemon: command(daemon, "top", "--once", "--interval", "0.1").output,
    "doctor": lambda daemon: (
        command(daemon, "doctor", "-c", str(daemon.config_path), "-o", "json").stdout
    ),
}


@pytest.mark.parametrize("surface", SURFACES)
def test_a_surface_shows_every_condition(surface: str, daemon: Daemon) -> None:
    text = SURFACES[surface](daemon)
    missing = [name for name in KINDS if words_of(name) not in text]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)
def test_a_page_shows_every_condition(page: Any, daemon: Daemon) -> None:
    """Also the page that says why a page is not shown, and the twin of each."""
    names = {"consumer": "billing", "group": "workers", "worker": "mail"}
    path = page.path.format(stream=STREAM, offset=1, **names)
    status, text = daemon.get(path)
    assert [name for name in KINDS if words_of(name) not in text] == [], (status, text)
    assert [name for name in KINDS if f'data-condition="{name}"' not in text] == []
    status, text = daemon.get(f"{path}.json")
    if status == 200:
        found = {one["name"]: one for one in json.loads(text)["conditions"]}
        assert {name: one["text"] for name, one in found.items() if name in KINDS} == {
            name: words_of(name) for name in KINDS
        }


@pytest.mark.parametrize("words", [("info", STREAM), ("ls", "-o", "wide"), ("ls", "-o", "json")])
def test_a_stream_shows_its_own_conditions(words: tuple[str, ...], daemon: Daemon) -> None:
    """And those of the daemon that its publishers notice, but no others."""
    text = command(daemon, "stream", *words).output
    for name, kind in KINDS.items():
        is_shown = kind.concerns_streams or (
            kind.about is About.STREAM and name not in _SHOWN_APART
        )
        assert (words_of(name) in text) == is_shown, name


def test_what_each_says_beside_the_words(daemon: Daemon) -> None:
    status, text = daemon.get("/readyz")
    found = json.loads(text)
    assert (status, found["status"]) == (503, "not ready")
    order = [one["severity"] for one in found["conditions"]]
    assert order == sorted(order, key=[one.value for one in Severity].index), "the worst first"
    for one in found["conditions"]:
        kind = KINDS[one["name"]]
        assert one["next_step"] == kind.next_step
        assert one["subject"] == {"stream": STREAM, "node": NODE, "daemon": ""}[one["about"]]
    shown = command(daemon, "health")
    assert shown.exit_code == ExitCode.TRY_AGAIN
    assert shown.stdout.splitlines()[0].split() == ["ready", "no"]
    for kind in KINDS.values():
        assert kind.next_step in shown.stdout


def test_without_unready_ones_the_daemon_is_ready(server: NatsServer) -> None:
    with running(server, "error,warning") as daemon:
        daemon.wait_ready()
        assert daemon.metric("liftlog_ready") == 1
        for http in (False, True):
            shown = command(daemon, "health", http=http)
            assert shown.exit_code == 0, shown.output
            assert words_of("lost_records") in shown.stdout
        assert daemon.metric("liftlog_conditions", condition="disk", severity="unready") == 0
