"""`python -m tools.pages`: write all generated pages."""

from __future__ import annotations

from pathlib import Path

from . import client, commands, conditions, errors, metrics, settings

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"

PAGES = {
    "cli.md": commands.render,
    "client-api.md": client.render,
    "conditions.md": conditions.render,
    "errors.md": errors.render,
    "metrics.md": metrics.render,
    "settings.md": settings.render,
}


if __name__ == "__main__":
    for name, render in PAGES.items():
        (REFERENCE / name).write_text(render())
