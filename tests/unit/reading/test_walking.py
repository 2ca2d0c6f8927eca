"""A walk back finds what a walk forward does, in windows of any size, with damage in between."""

from __future__ import annotations

from typing import Any

import pytest

from liftlog.errors import CorruptRange
from liftlog.records.columns.selection import parse_selection
from liftlog.server.reading import walking
from liftlog.server.reading.walking import Backward, Damage, Forward, Span

EVERYTHING = parse_selection()


@pytest.fixture
def log(broker: Any) -> Any:
    stream = broker.add("orders", subject="orders.>")
    for start in range(0, 120, 7):
        where = b"orders.eu" if start % 2 else b"orders.us"
        stream.append([b"v" * (start + 1)] * 7, subject=where)
    return stream.log


def taken(walk: Any, limit: int) -> list[int]:
    found: list[int] = []
    for _ in range(10_000):
        if walk.at_end:
            return found
        items = walk.step(limit)
        assert len(items) <= limit
        found += [one.first_offset if isinstance(one, Damage) else one.offset for one in items]
    raise AssertionError("the walk does not end")


@pytest.mark.parametrize("subjects", [None, ["orders.eu"], ["orders.none"]])
@pytest.mark.parametrize("limit", [1, 5, 1000])
@pytest.mark.parametrize("window_bytes", [1, 300, 10**6])
def test_the_same_both_ways(
    log: Any, subjects: Any, limit: int, window_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walking, "_WINDOW_BYTES", window_bytes)
    selection = parse_selection(subjects=subjects)
    for span in (Span(1, log.high_watermark), Span(20, 77), Span(50, 50), Span(9, 10)):
        forth = taken(Forward(log, span, selection, is_open=False), limit)
        back = taken(Backward(log, span, selection), limit)
        assert back == forth[::-1]
        assert all(span.low <= offset < span.high for offset in back)
        if subjects is None:
            assert forth == list(range(span.low, span.high))


@pytest.mark.parametrize("kept_bytes", [1, 200])
def test_few_bytes_at_a_time(log: Any, kept_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walking, "_KEPT_BYTES", kept_bytes)
    span = Span(1, log.high_watermark)
    assert taken(Backward(log, span, EVERYTHING), 50) == list(range(span.high - 1, 0, -1))


@pytest.mark.parametrize("window_bytes", [1, 300, 10**6])
def test_damage_is_met_once(log: Any, window_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real = log.read

    def read(offset: int, max_bytes: int, *some: Any, **options: Any) -> Any:
        if 36 <= offset < 50:  # two batches
            raise CorruptRange("lost", first_offset=36, next_offset=50)
        return real(offset, 1 if offset < 36 else max_bytes, *some, **options)

    monkeypatch.setattr(log, "read", read)
    monkeypatch.setattr(walking, "_WINDOW_BYTES", window_bytes)
    back = taken(Backward(log, Span(1, log.high_watermark), EVERYTHING), 5)
    assert back == [*range(log.high_watermark - 1, 49, -1), 36, *range(35, 0, -1)]


def test_an_item_that_was_not_used_comes_again(log: Any) -> None:
    span = Span(1, log.high_watermark)
    for walk in (Forward(log, span, EVERYTHING, is_open=True), Backward(log, span, EVERYTHING)):
        first, second, third = walk.step(3)
        walk.resume_after(first)
        assert not walk.at_end
        assert walk.step(2) == [second, third]
