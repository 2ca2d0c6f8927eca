"""Numbers, sizes and times as people read them; live.js is compared with them in tests/web."""

from __future__ import annotations

import time

import pytest

from liftlog.server.web import formats

SECOND_NS = 1_000_000_000


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [(0, "0 B"), (1023, "1,023 B"), (1024, "1.0 KiB"), (1280, "1.3 KiB"), (1024**2 - 1, "1.0 MiB"),
     (102 * 1024, "102 KiB"), (5 * 1024**4, "5.0 TiB"), (9 * 1024**6, "9,216 PiB")],
)  # fmt: skip
def test_sizes(size_bytes: int, shown: str) -> None:
    assert formats.size(size_bytes) == shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0"), (0.04, "0.0"), (0.25, "0.3"), (99.94, "99.9"), (99.95, "100"), (12345.6, "12,346")],
)
def test_rates(number: float, shown: str) -> None:
    assert formats.rate(number) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0 s"), (0.84, "0.8 s"), (59.9, "59 s"), (61, "1 min 1 s"), (3600, "1 h"),
     (90061, "1 d 1 h")],
)  # fmt: skip
def test_durations(seconds: float, shown: str) -> None:
    assert formats.duration(seconds) == shown


def test_moments() -> None:
    assert formats.moment(1_767_323_045_678_999_999) == "2026-01-02 03:04:05.678 UTC"
    assert formats.moment(0) == formats.moment(-5) == "none"
    assert formats.moment(2**63 - 1).startswith("2262-")
    assert formats.ago(0, 5) == "never"
    assert formats.ago(SECOND_NS, SECOND_NS) == "just now"
    assert formats.ago(SECOND_NS, 66 * SECOND_NS) == "1 min 5 s ago"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2026-01-02 03:04", 1_767_323_040), ("2026-01-02T03:04:05Z", 1_767_323_045),
     ("2026-01-02 05:04:05+02:00", 1_767_323_045), ("2026-01-02", 1_767_312_000),
     ("1767323045", 1_767_323_045), ("2026-01-02 03:04:05 UTC", 1_767_323_045)],
)  # fmt: skip
def test_moments_that_somebody_types(text: str, seconds: int) -> None:
    assert formats.parse_moment(text) == seconds * SECOND_NS


@pytest.mark.parametrize(
    "text",
    [
        "tomorrow",
        "yesterdays",
        "yesterday 25:00",
        "12",
        "",
        "h",
        "9" * 400 + "d",
        "2026-13-01",
        "-5m",
    ],
)
def test_what_is_no_moment(text: str) -> None:
    assert formats.parse_moment(text) is None


def test_days_by_name() -> None:
    day_ns = 86_400 * SECOND_NS
    for _ in range(2):  # midnight may come between
        today = time.time_ns() // day_ns * day_ns
        found = [formats.parse_moment(text) for text in ("today", "yesterday", "yesterday 12:30")]
        if found == [today, today - day_ns, today - day_ns + 45_000 * SECOND_NS]:
            return
    pytest.fail(f"{found} on the day that began at {today}")


def test_places_of_consumers_in_the_segments() -> None:
    segments = [
        {"kind": "sealed", "base_offset": low, "next_offset": low + 10, "size_bytes": size}
        for low, size in ((1, 100), (11, 300), (30, 0))
    ]
    parts = formats.segment_parts(segments)
    offsets = [0, 1, 6, 11, 20, 21, 25, 30, 40, 99]
    found = [one for one in formats.places(parts, offsets) if one is not None]
    assert len(found) == len(offsets)
    assert found == sorted(found)
    assert (found[0], found[1], found[-1]) == (0.0, 0.0, formats.WIDTH - 8.0)
    assert found[2] == pytest.approx(parts[0]["width"] / 2, abs=0.1)
    assert found[3] == pytest.approx(parts[1]["x"], abs=0.1)
    assert formats.places(parts, [None]) == formats.places([], [7]) == [None]
    empty = [{"kind": "active", "base_offset": 1, "next_offset": 1, "size_bytes": 0}]
    assert formats.places(formats.segment_parts(empty), [1]) == [6.0]
