"""The recording in README is of the lines that README tells to type."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from support.repository import REPOSITORY

from tools.recording import RECORDING, Piece, commands, render

README = (REPOSITORY / "README.md").read_text()
SVG = "{http://www.w3.org/2000/svg}"


def shown(svg: str) -> list[tuple[str, bool]]:
    """The texts of the drawing, and whether they were typed."""
    texts = ElementTree.fromstring(svg).iter(f"{SVG}text")
    return [(one.text or "", "typed" in one.attrib["class"]) for one in texts]


def test_what_is_typed_is_what_readme_says() -> None:
    told = [line for block in commands(README) for line in block]
    assert len(told) == 3
    words = [text for text, is_typed in shown(RECORDING.read_text()) if is_typed]
    assert words == [word for line in told for word in line.split()], "make recording"


def test_it_is_small_and_of_no_machine() -> None:
    svg = RECORDING.read_text()
    assert len(svg) < 300_000
    texts = " ".join(text for text, _ in shown(svg))
    assert not re.search(r"(^|[\s=])/\w", texts), "an absolute path"
    assert "orders 1" in texts, "the ack"
    assert re.search(r"orders\.new +first order", texts), "the record"


def test_readme_and_the_site_show_it() -> None:
    assert f"](docs/images/{RECORDING.name})" in README
    assert f"](images/{RECORDING.name})" in (REPOSITORY / "docs/index.md").read_text()


def test_each_text_appears_at_its_time() -> None:
    lines = [[Piece(1.0, 0, "$", False), Piece(2.0, 2, "a<b", True)], [Piece(4.0, 0, "c", False)]]
    svg = render([lines])
    assert shown(svg) == [("terminal 1", False), ("$", False), ("a<b", True), ("c", False)]
    assert re.findall(r"0 } ([\d.]+%)", svg) == ["10.00%", "20.00%", "40.00%"], "of ten seconds"
