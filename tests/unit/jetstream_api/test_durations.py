"""Durations are read as Go does it; the examples are those of Go's own tests."""

from __future__ import annotations

import pytest

from liftlog.server.jetstream_api.consumers.durations import parse_duration

SECOND = 10**9
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0", 0),
        ("5s", 5 * SECOND),
        ("+5s", 5 * SECOND),
        ("-5s", -5 * SECOND),
        ("-0", 0),
        ("5.0s", 5 * SECOND),
        ("5.6s", 5_600_000_000),
        ("5.s", 5 * SECOND),
        (".5s", SECOND // 2),
        ("1.004s", 1_004_000_000),
        ("100.00100s", 100_001_000_000),
        ("10ns", 10),
        ("11us", 11_000),
        ("12\u00b5s", 12_000),
        ("12\u03bcs", 12_000),
        ("13ms", 13_000_000),
        ("3h30m", 3 * HOUR + 30 * MINUTE),
        ("4m10.5s", 4 * MINUTE + 10 * SECOND + SECOND // 2),
        ("39h9m14.425s", 39 * HOUR + 9 * MINUTE + 14 * SECOND + 425_000_000),
        ("52763797000ns", 52_763_797_000),
        ("9223372036854775807ns", 2**63 - 1),
    ],
)
def test_what_is_a_duration(text: str, ns: int) -> None:
    assert parse_duration(text) == ns


@pytest.mark.parametrize(
    "text",
    [
        *("", "3", "-", "s", ".", "-.", ".s", "+.s", "1d", "1 s", " 1s", "1s\n", "\u0661s"),
        *("9223372036854775808ns", "3000000h", "--1s", "1e3s", "5s" * 33),
    ],
)
def test_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)
