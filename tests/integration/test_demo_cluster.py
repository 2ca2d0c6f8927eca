"""`liftlog demo-cluster`: real NATS servers and daemons, a real death."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.demo import failover

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


def test_it_succeeds_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    status = failover.run_demo(1500, keep=False)
    out = capsys.readouterr().out
    assert status == ExitCode.OK, out
    first, second = re.findall(r"Node (\w) leads", out)
    assert first != second
    assert "1,500 messages are acked." in out
    assert re.search(r"streams? under-replicated: .*\borders\b", out)
    for node in failover.NODES:
        assert f"ok  Node {node}: 1,500 records." in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("stored", "told"),
    [
        ({1: b"order 0", 2: b"order 1"}, ""),
        ({1: b"order 0"}, "node a: offset 2 does not hold message 1"),
        ({1: b"order 1", 2: b"order 0"}, "node a: offset 1 does not hold message 0"),
        ({1: b"order 0", 2: b"order 1", 3: b"order 1"}, "message b'order 1' is there 2 times"),
    ],
)
def test_what_is_missing_or_twice_makes_it_fail(stored: dict[int, bytes], told: str) -> None:
    records: list[Any] = [SimpleNamespace(offset=o, value=v) for o, v in stored.items()]
    problems = failover.find_lost("a", {0: 1, 1: 2}, records)
    assert bool(problems) == bool(told)
    assert told in "\n".join(problems)
