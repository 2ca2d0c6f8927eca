"""What a probe is told, check by check."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.daemons.catalogs import cluster_catalog, lone_catalog

from liftlog.server.ingest.counters import LinkCounters
from liftlog.server.ingest.refused_acks import RefusedAck, RefusedAcks
from liftlog.server.life.health import Health, Phase
from liftlog.server.life.reloading import Reloads
from liftlog.server.metrics.values import condition_values
from liftlog.server.node.cluster_catalog import node_of
from liftlog.server.streams.attachments import RefusedSubject
from liftlog.server.vitals import disk
from liftlog.server.vitals.conditions import Condition, Conditions
from liftlog.server.vitals.disk import DiskProbe, DiskState


class Parts:
    """A daemon in which everything is well, until a test says otherwise."""

    def __init__(self, directory: Path) -> None:
        self.link: Any = SimpleNamespace(
            connected=True,
            server_version="2.12.0",
            problem="127.0.0.1:4222: refused",
            refused_acks=RefusedAcks(),
            is_lame_duck=False,
            counters=LinkCounters(),
        )
        self.refused: list[RefusedSubject] = []
        self.troubles: list[Condition] = []
        self.stalled: list[str] = []
        self.broker: Any = SimpleNamespace(
            hosts={"a": None, "b": None, "_offsets": None},
            attached=True,
            nats_problem="",
            refused_subjects=lambda: self.refused,
            has_checkpoints=True,
            checkpoints=SimpleNamespace(newer=""),
            conditions=Conditions(),
            stalled_streams=lambda seconds: self.stalled,
            catalog=lone_catalog({}),
            settings=SimpleNamespace(nats=SimpleNamespace(jetstream_api=False)),
        )
        self.reloads = Reloads()
        self.disk = DiskProbe(directory)
        self.broker.conditions.add(lambda: self.troubles)
        self.health = Health(self.broker, self.link, self.disk, self.reloads, lambda: 0.25)
        self.health.phase = Phase.SERVING


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return Parts(tmp_path)


async def problems(parts: Parts) -> dict[str, str]:
    ready, body = await parts.health.readiness()
    found: dict[str, str] = body["problems"]
    assert ready == (not found)
    assert body["status"] == ("ok" if ready else "not ready")
    for name, check in body["checks"].items():
        assert check["detail"], name
        if name in found:
            assert not check["ok"]
            assert check["detail"] == found[name]
    known = {"recovery", "nats", "streams", "disk", "draining"}
    assert set(body["checks"]) == known | ({"cluster"} if node_of(parts.broker) else set())
    assert body["checks"]["recovery"]["detail"].endswith("2 streams are open")
    return found


async def test_all_is_well(parts: Parts) -> None:
    assert await problems(parts) == {}
    assert parts.health.liveness()["phase"] == "serving"
    assert parts.health.liveness()["event_loop_lag_seconds"] == 0.25


async def test_while_recovering(parts: Parts) -> None:
    parts.health.phase = Phase.RECOVERING
    parts.link.connected = parts.broker.attached = False
    assert set(await problems(parts)) == {"recovery"}
    assert not parts.health.is_serving


async def test_without_nats(parts: Parts) -> None:
    parts.link.connected = parts.broker.attached = False
    assert await problems(parts) == {"nats": "not connected to NATS: 127.0.0.1:4222: refused"}


async def test_a_subject_that_nats_refuses(parts: Parts) -> None:
    parts.broker.attached = False
    parts.broker.nats_problem = "NATS refuses a (stream s): Permissions Violation"
    assert await problems(parts) == {"streams": parts.broker.nats_problem}


async def warnings_of(parts: Parts) -> dict[str, str]:
    _, body = await parts.health.readiness()
    found: dict[str, str] = body["warnings"]
    return found


async def test_an_answer_is_short_with_thousands_of_conditions(parts: Parts) -> None:
    parts.troubles = [
        Condition.of("no_leader", "no node leads it", f"s{number}") for number in range(10_000)
    ]
    _, body = await parts.health.readiness()
    assert len(body["conditions"]) == 21
    assert "9,980 more" in body["conditions"][-1]["text"]
    assert len(json.dumps(body)) < 20_000
    counts = condition_values(await parts.broker.conditions.now())
    assert counts["no_leader", "error"] == 10_000


async def test_a_program_that_waits_can_use_jetstreams_api(parts: Parts) -> None:
    """If the daemon cannot serve the API, for example because JetStream itself answers, it is ready
    with a warning."""
    not_yet = {"streams": "JetStream's API has not started yet"}
    parts.broker.settings.nats.jetstream_api = True
    assert await problems(parts) == not_yet
    api: Any = SimpleNamespace(is_deciding=True, problem="unknown", worker_problems={})
    parts.health.jetstream_api = api
    assert await problems(parts) == not_yet
    api.is_deciding, api.problem = False, "JetStream answers here"
    assert await problems(parts) == {}
    _, body = await parts.health.readiness()
    assert "JetStream answers here" in body["warnings"]["jetstream_api"]


class Node:
    """Of a cluster, with a session that has just been renewed."""

    def __init__(self) -> None:
        self.member = SimpleNamespace(name="a")
        self.session = SimpleNamespace(deadline=time.monotonic() + 1000)
        self.behind: list[str] = []
        self.leader: str | None = "a"
        self.problem = ""

    @property
    def view(self) -> Any:
        """The node `a` knows who leads."""
        return SimpleNamespace(leads_elsewhere=self.leads_elsewhere)

    def leads_elsewhere(self, name: str) -> bool:
        return name == "_offsets" and self.leader not in (None, self.member.name)

    def store_problem(self) -> str:
        return self.problem

    def not_in_sync(self) -> list[str]:
        return self.behind


async def test_a_node_without_a_session(parts: Parts) -> None:
    node = Node()
    parts.broker.catalog = cluster_catalog(node)
    assert await problems(parts) == {}
    node.session.deadline = time.monotonic() - 1
    assert "metadata store" in (await problems(parts))["cluster"]
    node.problem = "the metadata store is that of cluster c0ffee"
    assert (await problems(parts))["cluster"] == node.problem
    parts.health.phase = Phase.RECOVERING
    assert set(await problems(parts)) == {"recovery"}


async def test_a_node_that_starts_waits_for_its_replicas(parts: Parts) -> None:
    parts.broker.conditions = Conditions()
    parts.health = Health(
        parts.broker, parts.link, parts.disk, parts.reloads, lambda: 0.25, ready_after_seconds=1000
    )
    node = Node()
    parts.broker.catalog = cluster_catalog(node)
    node.behind = ["orders"]
    assert set(await problems(parts)) == {"recovery"}, "no record was read yet"
    parts.health.phase = Phase.SERVING
    assert "not in sync yet: orders" in (await problems(parts))["cluster"]
    node.behind = []
    assert await problems(parts) == {}
    node.behind = ["orders"]
    assert await problems(parts) == {}, "once they were, it is no matter of the start"


async def test_it_does_not_wait_for_replicas_for_ever(parts: Parts) -> None:
    node = Node()
    parts.broker.catalog = cluster_catalog(node)
    node.behind = ["orders"]
    assert await problems(parts) == {}


async def test_what_need_not_be_is_a_warning(parts: Parts) -> None:
    parts.refused = [RefusedSubject("_offsets", "liftlog.x", "Permissions Violation", False)]
    parts.link.is_lame_duck = True
    parts.link.counters.acks_refused = 7
    parts.link.refused_acks.last = RefusedAck("_INBOX.a", "Permissions Violation", time.monotonic())
    assert await problems(parts) == {}
    warnings = await warnings_of(parts)
    assert set(warnings) == {"nats_refused", "acks_refused", "lame_duck"}
    assert "liftlog.x: Permissions Violation" in warnings["nats_refused"]
    assert "7 acks, the last to _INBOX.a: Permissions Violation" in warnings["acks_refused"]
    parts.link.refused_acks.last = RefusedAck("_INBOX.a", "Permissions Violation", -1e6)
    assert "acks_refused" not in await warnings_of(parts), "long ago"


async def test_before_nats_has_confirmed(parts: Parts) -> None:
    parts.broker.attached = False
    assert set(await problems(parts)) == {"streams"}


async def test_a_commit_that_waits_for_the_disk(parts: Parts) -> None:
    parts.stalled = ["b", "a"]
    assert (await problems(parts))["disk"] == "a commit waits for the disk: a, b"


async def test_a_disk_that_cannot_be_written(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "look_at", lambda directory: DiskState(0, 0, "read-only"))
    assert await problems(parts) == {"disk": "read-only"}


async def test_while_draining(parts: Parts) -> None:
    parts.health.phase = Phase.DRAINING
    assert await problems(parts) == {"draining": "the daemon is stopping"}
    assert parts.health.is_serving


@pytest.mark.parametrize("leader", ["a", "b", None])
async def test_checkpoints_of_a_cluster(parts: Parts, leader: str | None) -> None:
    """One node answers for them; of the others none has a reason to warn."""
    node = Node()
    parts.broker.catalog = cluster_catalog(node)
    node.leader, parts.broker.has_checkpoints = leader, False
    assert ("checkpoints" in await warnings_of(parts)) == (leader != "b")
    parts.broker.has_checkpoints = True
    assert await warnings_of(parts) == {}


async def test_warnings_do_not_take_it_out_of_service(parts: Parts) -> None:
    parts.reloads.problems = {"acl": "line 3"}
    parts.broker.has_checkpoints = False
    parts.troubles = [
        Condition.of("failed_streams", "rot", "bills"),
        Condition.of("lost_records", "5 offsets cannot be read: [1, 6) rot", "orders"),
    ]
    ready, body = await parts.health.readiness()
    assert ready
    assert body["warnings"]["failed_streams"] == "bills: rot"
    assert "cannot store" in body["warnings"]["checkpoints"]
    assert body["warnings"]["lost_records"] == "orders: 5 offsets cannot be read: [1, 6) rot"
    assert body["warnings"]["reload"] == "acl was not reloaded: line 3"
