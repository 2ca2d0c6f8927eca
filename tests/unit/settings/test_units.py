import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftlog.settings import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1.0),
        ("250ms", 0.25),
        ("2m", 120.0),
        ("7d", 604_800.0),
        ("1h30m", 5400.0),
        ("0.5s", 0.5),
        ("10us", 0.00001),
        ("10µs", 0.00001),
        ("2w", 1_209_600.0),
        ("0s", 0.0),
        ("15", 15.0),
        (3, 3.0),
        (0.25, 0.25),
    ],
)
def test_durations(text: object, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "1x", "-1s", "1 s 2", "1e3s", "\u0663s", "1s\n2"])
def test_badly_written_durations(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration such as"):
        parse_duration(text)


@pytest.mark.parametrize(
    "text", [True, None, [], -1, math.nan, math.inf, 10**400, "101w" * 60, "99999999999999d"]
)
def test_bad_durations(text: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8MiB", 8 * 2**20),
        ("1GB", 10**9),
        ("64 KiB", 65_536),
        ("512", 512),
        (512, 512),
        ("1.5KiB", 1536),
        ("1kb", 1000),
        ("2TiB", 2**41),
        ("7B", 7),
    ],
)
def test_sizes(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    ["", "MiB", "8M", "8X", "-1", -1, 1.5, "0.5B", "1.5", True, None, "1e3", 2**63, "9999999TiB"],
)
def test_bad_sizes(text: object) -> None:
    with pytest.raises(ValueError, match=r"expected|unknown unit"):
        parse_size(text)


@given(st.integers(0, 2**62))
def test_a_size_survives_formatting(size: int) -> None:
    assert parse_size(format_size(size)) == size


@given(st.one_of(st.floats(0, 3e9), st.integers(0, 10**15).map(lambda ns: ns / 10**9)))
def test_a_duration_survives_formatting(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


def test_the_shortest_unit_is_chosen() -> None:
    assert [format_duration(s) for s in (0, 1, 0.25, 5400, 86_400)] == [
        "0s",
        "1s",
        "250ms",
        "90m",
        "1d",
    ]
    assert [format_size(s) for s in (0, 512, 8 * 2**20, 2**30)] == [0, 512, "8MiB", "1GiB"]
