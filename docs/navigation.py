"""MkDocs hook: the site's menu follows the folders, so that a new page needs no entry anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

PARTS = {
    "tutorial": "Tutorial",
    "how-to": "How-to",
    "reference": "Reference",
    "explanation": "Explanation",
    "adr": "Decisions",
}


def on_config(config: Any) -> Any:
    docs = Path(config["docs_dir"])
    # Pages beside index.md are the normative specifications: they open the reference.
    specifications = sorted(page.name for page in docs.glob("*.md") if page.name != "index.md")
    menu: list[Any] = [{"liftlog": "index.md"}]
    for folder, title in PARTS.items():
        pages = sorted(
            (docs / folder).rglob("*.md"), key=lambda page: (page.name != "index.md", str(page))
        )
        entries = [page.relative_to(docs).as_posix() for page in pages]
        if folder == "reference":
            entries = specifications + entries
        if entries:
            menu.append({title: entries})
    config["nav"] = menu
    return config
