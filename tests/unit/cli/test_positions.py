"""--from: offsets, ends and times."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from liftlog.cli.lib.ranges import Position, Relative, parse_position

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        (" latest ", "latest"),
        ("start", "earliest"),
        ("end", "latest"),
        ("-100", Relative(100, from_end=True)),
        ("+7", Relative(7, from_end=False)),
        ("0", 0),
        ("42", 42),
        (str(2**63 - 1), 2**63 - 1),
        ("@now", NOW),
        ("@-5m", NOW - timedelta(minutes=5)),
        ("@-1h30m", NOW - timedelta(minutes=90)),
        ("@-1.5d", NOW - timedelta(hours=36)),
        ("5m", NOW - timedelta(minutes=5)),
        ("1h30m", NOW - timedelta(minutes=90)),
        ("@-250ms", NOW - timedelta(milliseconds=250)),
        ("@2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("@2026-01-31T12:00:00.000001+02:00", datetime(2026, 1, 31, 10, 0, 0, 1, tzinfo=UTC)),
        ("@0", datetime(1970, 1, 1, tzinfo=UTC)),
        ("@1767225600", datetime(2026, 1, 1, tzinfo=UTC)),
        ("@1767225600.5", datetime(2026, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC)),
    ],
)
def test_what_is_accepted(text: str, expected: Position) -> None:
    assert parse_position(text, NOW) == expected


def test_a_time_without_a_zone_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        found = parse_position("@2026-01-31T09:00", NOW)
        assert found == datetime(2026, 1, 31, 0, tzinfo=UTC)
        assert parse_position("@2026-01-31", NOW) == datetime(2026, 1, 30, 15, tzinfo=UTC)
        evening = datetime(2026, 1, 31, 20, tzinfo=UTC)  # there it is the next day
        for text, day, hour in (("@today", 31, 15), ("@yesterday", 30, 15),
                                ("@yesterdayT09:00", 31, 0)):  # fmt: skip
            assert parse_position(text, evening) == datetime(2026, 1, day, hour, tzinfo=UTC)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is not a position"),
        ("first", "is not a position"),
        ("-", "is not a position"),
        ("-+5", "is not a position"),
        ("9" * 5000, "larger than any offset"),
        ("1.5", "is not a position"),
        ("5x", "is not a position"),
        ("9999999d", "years 1 to 9999"),
        ("٣", "is not a position"),
        (str(2**63), "larger than any offset"),
        ("@", "is not a time"),
        ("@tomorrow", "is not a time"),
        ("@yesterdayish", "is not a time"),
        ("@todayT25:00", "is not a time"),
        ("@-5", "is not a time"),
        ("@-5x", "is not a time"),
        ("@2026-13-01", "is not a time"),
        ("@-9999999d", "years 1 to 9999"),
        ("@0001-01-01T00:00+01:00", "years 1 to 9999"),
        ("@1767225600000", "looks like milliseconds"),
        ("@1767225600000000000", "looks like milliseconds"),
    ],
)
def test_what_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_position(text, NOW)
