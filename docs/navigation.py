"""MkDocs hook: makes the site's menu from index.md. A page that index.md does not name comes last.
Decisions are in a collapsed part below the explanations, and the search shows guides first."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PARTS = {
    "tutorial": "Tutorial",
    "how-to": "How-to",
    "reference": "Reference",
    "explanation": "Explanation",
    "adr": "Decisions",
}
BELOW, FOLDED = "explanation", "adr"
BOOSTS = {"tutorial": 4, "how-to": 4, "reference": 1, "explanation": 1, "adr": 0.25}
_LINE = re.compile(r"^### (.+)$|\]\(([\w./-]+\.md)\)", re.MULTILINE)


def on_config(config: Any) -> Any:
    docs = Path(config["docs_dir"])
    index = (docs / "index.md").read_text()
    menu: list[Any] = [{"liftlog": "index.md"}]
    for folder, title in PARTS.items():
        pages = sorted(page.relative_to(docs).as_posix() for page in (docs / folder).rglob("*.md"))
        [part] = re.findall(rf"^## {title}$(.*?)(?=^## |\Z)", index, re.M | re.S) or [""]
        if folder == FOLDED:
            menu[-1][PARTS[BELOW]].append({title: entries(part, pages)})
        else:
            menu.append({title: entries(part, pages)})
    config["nav"] = menu
    return config


def on_page_markdown(markdown: str, page: Any, **rest: Any) -> str:
    """Set the weight of a page in the search, which Material reads from the metadata of the
    page."""
    folder = page.file.src_uri.partition("/")[0]
    page.meta.setdefault("search", {}).setdefault("boost", BOOSTS.get(folder, 1))
    return markdown


def entries(part: str, pages: list[str]) -> list[Any]:
    """Return the pages of a part, below their headings in index.md."""
    menu: list[Any] = []
    group = menu
    left = list(pages)
    for heading, page in _LINE.findall(part):
        if heading:
            group = []
            menu.append({heading: group})
        elif page in left:
            left.remove(page)
            group.append(page)
    return menu + left
