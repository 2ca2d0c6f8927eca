"""The picture in README and docs shows the page as it is."""

from __future__ import annotations

from PIL import Image
from web.screenshot import NOTE, PICTURE, ROOT, digest


def test_the_picture_is_of_this_page() -> None:
    with Image.open(PICTURE) as picture:
        assert picture.info.get(NOTE) == digest(), "the page has changed: make screenshot"
        assert picture.width >= 1000
    assert PICTURE.stat().st_size < 150_000


def test_readme_and_docs_show_it() -> None:
    name = PICTURE.relative_to(ROOT / "docs").as_posix()
    assert f"](docs/{name})" in (ROOT / "README.md").read_text()
    assert f"](../{name})" in (ROOT / "docs/how-to/web-page.md").read_text()
