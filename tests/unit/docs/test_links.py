"""Links of the pages beside `docs`, and every path that any page names. mkdocs checks the rest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BESIDE = sorted(ROOT.glob("*.md"))
PAGES = [*BESIDE, *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
NAMED = re.compile(r"`((?:[\w.-]+/)+[\w.-]*)`")
PLACES = ("", "liftlog", "tests")
"""Where the pages begin paths of this repository."""
MADE = {"build", "data", "dist", "site"}
"""By the Makefile and by users: what pages name there may not be there yet."""
TOPS = {path.name for place in PLACES for path in (ROOT / place).iterdir() if path.is_dir()} - MADE


def ids(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    words = [re.sub(r"[^\w\s-]", "", title.lower()).strip() for title in titles]
    return {re.sub(r"[\s-]+", "-", word) for word in words}


@pytest.mark.parametrize("page", BESIDE, ids=ids)
def test_links_beside_the_documentation(page: Path) -> None:
    for link in LINK.findall(page.read_text()):
        if re.match(r"[a-z]+:", link):
            continue
        where, _, anchor = link.partition("#")
        target = page.parent / where if where else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_paths_that_are_named(page: Path) -> None:
    for path in NAMED.findall(page.read_text()):
        if path.split("/")[0] not in TOPS or path.startswith("."):
            continue
        assert any((ROOT / place / path).exists() for place in PLACES), path


def test_every_page_is_in_the_index() -> None:
    """docs/index.md is the map: each page of the tutorial, how-to and explanation stands in it."""
    index = (ROOT / "docs/index.md").read_text()
    linked = {link.partition("#")[0] for link in LINK.findall(index)}
    for part in ("tutorial", "how-to", "reference", "explanation"):
        for page in sorted((ROOT / "docs" / part).glob("*.md")):
            assert f"{part}/{page.name}" in linked, page.name


def test_the_architecture_names_modules_that_exist() -> None:
    """With their folder, or the test above would pass over them."""
    text = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
    named = set(re.findall(r"`([^`\s]+\.py)`", text))
    assert len(named) > 50
    missing = [
        path
        for path in sorted(named)
        if "/" not in path or not any((ROOT / place / path).is_file() for place in PLACES[:2])
    ]
    assert not missing
