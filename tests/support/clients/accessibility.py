"""What a screen reader and a phone need of every page; asked of the page in the browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

_UNLABELLED = """() => [...document.querySelectorAll('input, select, textarea')]
  .filter((one) => one.type !== 'hidden' && !one.labels.length && !one.getAttribute('aria-label'))
  .map((one) => one.outerHTML)"""
_NAMED = "a, button, summary, [role=region], nav, table, svg[role=img]"
_UNNAMED = """() => [...document.querySelectorAll('NAMED')]
  .filter((one) => !(one.textContent.trim() || one.getAttribute('aria-label')
                     || one.querySelector('img[alt]:not([alt=""])')))
  .map((one) => one.outerHTML)""".replace("NAMED", _NAMED)
_UNSCOPED = """() => [...document.querySelectorAll('th')].filter((one) => !one.scope).length"""
_TWICE = """() => { const ids = [...document.querySelectorAll('[id]')].map((one) => one.id);
  return ids.filter((one, i) => ids.indexOf(one) !== i); }"""
_BROKEN = """() => [...document.querySelectorAll('[aria-labelledby], [aria-describedby]')]
  .flatMap((one) => ['aria-labelledby', 'aria-describedby'].map((name) => one.getAttribute(name)))
  .flatMap((ids) => ids?.split(' ') ?? [])
  .filter((id) => !document.getElementById(id))"""

_CUT_OFF = """() => [...document.querySelectorAll('main .scroll:not(.topology)')]
  .filter((one) => one.scrollWidth > one.clientWidth)
  .map((one) => one.getAttribute('aria-label'))"""


def check_accessible(page: Page) -> None:
    assert page.locator("h1").count() == 1
    assert page.locator("main").count() == page.locator("header").count() == 1
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.title().endswith("liftlog")
    for question in (_UNLABELLED, _UNNAMED, _TWICE, _BROKEN):
        assert page.evaluate(question) == [], question
    assert page.evaluate(_UNSCOPED) == 0
    assert page.locator("table:not(:has(caption))").count() == 0
    assert page.locator("img:not([alt])").count() == 0


def check_with_axe(page: Page) -> None:
    """The rules of axe-core. Skips the test where it is not installed."""
    module = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="pip install .[dev]"
    )
    options = {"resultTypes": ["violations"]}
    if page.evaluate("typeof axe") == "undefined":
        page.evaluate(module.Axe().axe_script)
    found = page.evaluate("options => axe.run(options).then(told => told.violations)", options)
    told = [[one["id"], one["help"], [node["html"] for node in one["nodes"]]] for one in found]
    assert told == [], page.url


WAYS = ((1280, "light"), (390, "dark"))


def check_in_every_way(page: Page, what: str) -> None:
    """All rules of axe-core in both schemes, and in the layouts of a desk and of a phone.

    Nothing is wider than the window, nor a table than its place."""
    for width, scheme in WAYS:
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        check_accessible(page)
        check_with_axe(page)
        assert is_as_wide_as_its_window(page), (what, width)
        assert page.evaluate(_CUT_OFF) == [], (what, width)


def is_as_wide_as_its_window(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))
