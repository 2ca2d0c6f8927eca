"""The log's configuration, from a stream's settings."""

from __future__ import annotations

from typing import Any

import pytest

from liftlog.server.commits.configs import log_config
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
