"""A principal who may read only some subjects of a stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.daemons.served_logs import ServedLogs
from support.spark.local_engine import LocalEngine

from acl.policy import Policy
from liftlog.client import connect_sync
from liftlog.errors import Forbidden
from liftlog.spark.export.job import ExportJob
from liftlog.spark.export.planning import ExportRequest
from liftlog.spark.options import parse_options
from liftlog.spark.scan import plan, read


def policy(subjects: str) -> Policy:
    return Policy.load(
        f"""
principals: {{anonymous: {{}}}}
roles: {{some: [{{allow: [read, commit], streams: ["*"]{subjects}}}]}}
bindings: {{anonymous: [some]}}
"""
    )


@pytest.fixture(params=[', subjects: ["orders.eu"]', ""])
def logs(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ServedLogs]:
    """Yield logs in which `moved` has a newer value on another subject, and `gone` a tombstone."""
    with ServedLogs(tmp_path / "streams", policy=policy(request.param)) as served:
        served.add("orders", subject="orders.*")
        for subject, moved, gone in (("eu", b"old", b"old"), ("us", b"new", None)):
            served.append(
                "orders",
                [moved, gone],
                keys=[b"moved", b"gone"],
                subject=f"orders.{subject}".encode(),
            )
        yield served


def is_partial(logs: ServedLogs) -> bool:
    with connect_sync(logs.address) as client:
        return client.describe_stream("orders").readable_subjects == ["orders.eu"]


def test_a_read_is_one_of_these_subjects(logs: ServedLogs) -> None:
    expected = {
        False: [(1, b"old"), (2, b"old"), (3, b"new"), (4, None)],
        True: [(3, b"new"), (4, None)],
    }
    for compact in (False, True):
        given = {"stream": "orders", "server": logs.server, "compact": str(compact)}
        options = parse_options(given)
        found: list[Any] = [
            (row["offset"], row["value"])
            for wanted in plan(options)
            for made in read(options, wanted)
            for row in made.to_pylist()
        ]
        wanted = [(1, b"old"), (2, b"old")] if is_partial(logs) else expected[compact]
        assert found == wanted


def test_no_table_is_made_of_part_of_a_stream(logs: ServedLogs, tmp_path: Path) -> None:
    request = ExportRequest("orders", str(tmp_path / "lake"), dry_run=True)
    job = ExportJob(
        request, parse_options({"stream": "orders", "server": logs.server}), LocalEngine
    )
    if not is_partial(logs):
        assert job.run().to_offset == 5
        return
    with pytest.raises(Forbidden, match=r"needs all of 'orders', and only orders\.eu may be read"):
        job.run()
