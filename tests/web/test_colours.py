"""Contrast of every pair of colours that the style sheet sets text or shapes in."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CSS = (Path(__file__).parents[2] / "liftlog/server/web/static/liftlog.css").read_text()
TEXT_PAIRS = [
    *((ink, back) for ink in ("ink", "soft", "link") for back in ("page", "card", "sunken")),
    *((name, f"{name}-back") for name in ("ok", "warn", "bad")),
    ("on-button", "button"), ("ink", "quiet-back"), ("link", "quiet-back"), ("ok", "card"),
    ("warn", "card"), ("ok", "sunken"), ("bad", "card"), ("bad", "page"),
]  # fmt: skip
SHAPE_PAIRS = [("edge", "page"), ("edge", "card"), ("series", "card"), ("link", "page")]


def palettes() -> dict[str, dict[str, str]]:
    blocks = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w{6});", block)) for block in blocks)
    return {"light": light, "dark": {**light, **dark}}


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(scheme: str) -> None:
    """4.5 for text, 3 for shapes, as WCAG 2.2 AA has it."""
    palette = palettes()[scheme]
    for pairs, least in ((TEXT_PAIRS, 4.5), (SHAPE_PAIRS, 3.0)):
        for one, other in pairs:
            assert contrast(palette[one], palette[other]) >= least, (one, other)
