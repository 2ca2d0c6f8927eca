"""The configuration of the log from the settings of a stream, and the size of a bucket."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from liftlog.server.commits.configs import NewestBytes, log_config
from liftlog.settings import parse_stream_settings

HOUR_NS = 3600 * 1_000_000_000


@pytest.mark.parametrize(
    ("settings", "hours"),
    [
        ({"segment": {"max_age": "3h"}}, 3),
        ({"segment": {"max_age": "3h"}, "compaction": {}}, 3),
        # A quiet stream must roll in time for its records to be compacted within max_lag.
        ({"segment": {"max_age": "3h"}, "compaction": {"max_lag": "2h"}}, 2),
        ({"segment": {"max_age": "3h"}, "compaction": {"max_lag": "4h"}}, 3),
        ({"segment": {"max_age": None}, "compaction": {"max_lag": "4h"}}, 4),
        ({"segment": {"max_age": "3h"}, "compaction": {"enabled": False, "max_lag": "2h"}}, 3),
        ({"segment": {"max_age": None}}, None),
    ],
)
def test_segments_roll_by_their_age_and_by_max_lag(
    settings: dict[str, Any], hours: int | None
) -> None:
    config = log_config(parse_stream_settings({"subject": "in", **settings}))
    assert config.segment_max_age_ns == (None if hours is None else hours * HOUR_NS)


class Sized:
    """A log of which only the size is known."""

    def __init__(self) -> None:
        self.view = SimpleNamespace(size_bytes=1000)

    def changes_to(self, size_bytes: int) -> None:
        self.view.size_bytes = size_bytes


def test_what_compaction_frees_makes_no_room_for_what_came_after_the_count() -> None:
    log = Sized()
    newest = NewestBytes(log)  # type: ignore[arg-type]
    at = newest.grown_bytes
    log.changes_to(1300)
    newest.count(100, at)
    assert newest.size_bytes == 100 + 300
    log.changes_to(200)  # a pass removed what was superseded
    assert newest.size_bytes == 100 + 300
    log.changes_to(250)
    assert newest.size_bytes == 100 + 300 + 50
    newest.count(None)
    assert newest.size_bytes == 250, "all records, if they cannot be counted"
