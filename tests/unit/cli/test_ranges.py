"""consume --from: rpk's grammar."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from liftlog.cli.lib.ranges import Range, Relative, parse_range, resolve

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type, misc]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("start", Range("earliest")),
        ("end", Range("latest")),
        ("42", Range(42)),
        ("-100", Range(Relative(100, from_end=True))),
        ("10:20", Range(10, 20)),
        ("10:", Range(10)),
        (":20", Range("earliest", 20)),
        (":end", Range("earliest", "latest")),
        ("-100:end", Range(Relative(100, from_end=True), "latest")),
        ("-100:-10", Range(Relative(100, from_end=True), Relative(10, from_end=True))),
        ("+5:+10", Range(Relative(5, from_end=False), Relative(10, from_end=False))),
        ("@-1h", Range(NOW - HOUR)),
        ("@-1h:", Range(NOW - HOUR)),
        ("@-1h:-5m", Range(NOW - HOUR, NOW - HOUR / 12)),
        ("@-1h:@-5m", Range(NOW - HOUR, NOW - HOUR / 12)),
        ("@-1h:end", Range(NOW - HOUR, "latest")),
        ("@-3h:+1h30m", Range(NOW - 3 * HOUR, NOW - 1.5 * HOUR)),
        ("@1767225600:1767225700", Range(utc(2026, 1, 1), utc(2026, 1, 1, 0, 1, 40))),
        # What can only be a time needs no @.
        ("2026-01-31T12:30:00Z", Range(utc(2026, 1, 31, 12, 30))),
        ("2026-01-31T12:30:00Z:+1h", Range(utc(2026, 1, 31, 12, 30), utc(2026, 1, 31, 13, 30))),
        ("yesterday 12:00Z:today 00:30Z", Range(utc(2026, 2, 28, 12), utc(2026, 3, 1, 0, 30))),
        # A time has colons of its own.
        ("@2026-01-31T12:30:00Z", Range(utc(2026, 1, 31, 12, 30))),
        (
            "@2026-01-31T12:30:00Z:2026-01-31T13:30:00Z",
            Range(utc(2026, 1, 31, 12, 30), utc(2026, 1, 31, 13, 30)),
        ),
        ("@2026-01-31T12:30:00+01:00:-5m", Range(utc(2026, 1, 31, 11, 30), NOW - HOUR / 12)),
        ("@2026-01-31T12:30:00Z:+1h", Range(utc(2026, 1, 31, 12, 30), utc(2026, 1, 31, 13, 30))),
    ],
)
def test_what_is_accepted(text: str, expected: Range) -> None:
    assert parse_range(text, NOW) == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not a valid range: use start, end, an offset"),
        ("first", "not a valid range: use start"),
        ("10-20", "not a valid range: use start"),
        ("10..20", "not a valid range: use start"),
        ("10:20:30", "'20:30' is not a valid range"),
        ("20:10", "must be after the start"),
        ("10:10", "must be after the start"),
        ("10:start", "has nothing before its start"),
        ("9" * 30, "larger than any offset"),
        ("@", "not a valid range"),
        ("@tomorrow", "not a valid range"),
        ("@-1h:tomorrow", "not a valid range"),
        ("@-5m:-1h", "must be after the start"),
        ("@-5m:+1h", "is in the future"),
        ("@-5m:2030-01-01", "is in the future"),
        ("@1767225600000", "looks like milliseconds"),
        ("@-99999999d", "years 1 to 9999"),
        ("@-5m:+99999999999d", "not a valid range"),
    ],
)
def test_what_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint.replace("(", r"\(")):
        parse_range(text, NOW)


class Header:
    log_start_offset = 50
    high_watermark = 100

    def __init__(self, offset: int) -> None:
        self.offset = offset


class Client:
    """A daemon that holds offsets 50 to 99; what was stamped since NOW begins at 80."""

    def __init__(self) -> None:
        self.asked = 0

    def fetch(self, stream: str, start: Any, *, max_bytes: int) -> Any:
        self.asked += 1
        header = Header(80 if isinstance(start, datetime) else 100)
        return type("Answer", (), {"header": header})


@pytest.mark.parametrize(
    ("text", "expected", "questions"),
    [
        ("start", ("earliest", None), 0),
        (":end", ("earliest", "end"), 0),
        ("7:9", (7, 9), 0),
        ("-10", (90, None), 1),
        ("-100", (50, None), 1),
        ("+10:-20", (60, 80), 2),
        ("+1000", (100, None), 1),
        ("@-1h:-5m", (NOW - HOUR, 80), 1),
    ],
)
def test_what_it_means_for_a_stream(text: str, expected: object, questions: int) -> None:
    client = Client()
    found = resolve(client, "orders", parse_range(text, NOW))  # type: ignore[arg-type]
    assert (found, client.asked) == (expected, questions)
