"""Figures on other pages are those that the page on performance has, and their commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from liftlog.records.encode import encode_batch

ROOT = Path(__file__).parents[3]
PERFORMANCE = (ROOT / "docs/explanation/performance.md").read_text()
ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \| `make bench ARGS=\"--only ([a-z0-9-]+)\"` \|$", re.M)
PAGES = ("docs/explanation/comparison.md", "docs/how-to/sizing.md")


@pytest.mark.parametrize("page", PAGES)
def test_rows_are_those_of_the_page_on_performance(page: str) -> None:
    rows = ROW.findall((ROOT / page).read_text())
    assert rows
    for figure, measured, _ in rows:
        assert f"| {figure} | {measured} |" in PERFORMANCE


@pytest.mark.parametrize("page", PAGES)
def test_rows_name_what_the_benchmark_has(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tests/bench"))
    from liftbench.figures import ROWS

    known = {row.key for row in ROWS}
    for _, _, row in ROW.findall((ROOT / page).read_text()):
        assert row in known


@pytest.mark.parametrize("figure", ["236 us", "52 us", "6.5 us", "3.9 us", "177,000 to 255,000"])
def test_figures_in_the_text_stand_on_the_page_on_performance(figure: str) -> None:
    assert figure in (ROOT / "docs/how-to/sizing.md").read_text()
    assert figure in PERFORMANCE


def test_the_figures_of_the_readme_stand_on_the_page_on_performance() -> None:
    readme = (ROOT / "README.md").read_text()
    assert re.findall(r"\*\*([\d.]+x(?: to [\d.]+x)?)\*\*", readme) == ["1.1x to 1.5x", "29x"]
    assert "| durable 64x100 / JetStream that does not fsync | 1.1x to 1.5x |" in PERFORMANCE
    assert "| read 256 B / JetStream ordered | 29x |" in PERFORMANCE


@pytest.mark.parametrize("count", [1000, 4096])
@pytest.mark.parametrize("subjects", [1, 7])
@pytest.mark.parametrize("key", [b"", b"order-17"])
@pytest.mark.parametrize("header", [b"", b"NATS/1.0\r\nNats-Msg-Id: 17\r\n\r\n"])
def test_the_size_of_records(count: int, subjects: int, key: bytes, header: bytes) -> None:
    """What docs/how-to/sizing.md says a record takes, to within the dictionary and padding."""
    names = [b"orders.%d" % (i % subjects) for i in range(count)]
    batch = encode_batch(
        base_offset=1,
        leader_epoch=1,
        commit_group=1,
        stamps=[(1_700_000_000_000_000_000 + 1000 * i, 1) for i in range(count)],
        subjects=names,
        values=[b"x" * 100] * count,
        keys=[key] * count if key else None,
        headers=[header] * count if header else None,
    )
    each = 100 + 4 + 4 + (2 if subjects > 1 else 0)
    each += len(key) + 4 if key else 0
    each += len(header) + 4 if header else 0
    rest = len(batch) - count * each - 64
    bitmap = count // 8 if key else 0
    assert 0 <= rest - bitmap < 200


def test_the_size_of_a_lone_record() -> None:
    batch = encode_batch(
        base_offset=1,
        leader_epoch=1,
        commit_group=1,
        stamps=[(1_700_000_000_000_000_000, 1)],
        subjects=[b"orders.eu"],
        values=[b"x" * 104],
    )
    assert 85 <= len(batch) - 104 <= 105
