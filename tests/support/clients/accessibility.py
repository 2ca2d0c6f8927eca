"""Checks the needs of screen readers and phones on every page, by tests in the browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page
from support.rounds import one_in

_CHECK = """() => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const html = (found) => found.map((one) => one.outerHTML);
  const ids = all('[id]').map((one) => one.id);
  const said = (one) => one.textContent.trim() || one.getAttribute('aria-label')
    || one.querySelector('img[alt]:not([alt=""])');
  const fields = all('input, select, textarea').filter((one) => one.type !== 'hidden');
  const references = all('[aria-labelledby], [aria-describedby]')
    .flatMap((one) => ['aria-labelledby', 'aria-describedby'].map((name) => one.getAttribute(name)))
    .flatMap((found) => found?.split(' ') ?? []);
  return {
    once: ['h1', 'main', 'header'].filter((name) => all(name).length !== 1),
    language: document.documentElement.lang,
    title: document.title,
    unlabelled: html(fields.filter((one) => !one.labels.length && !one.getAttribute('aria-label'))),
    unnamed: html(all('a, button, summary, [role=region], nav, table, svg[role=img]')
      .filter((one) => !said(one))),
    twice: ids.filter((one, i) => ids.indexOf(one) !== i),
    broken: references.filter((id) => !document.getElementById(id)),
    unscoped: html(all('th').filter((one) => !one.scope)),
    uncaptioned: html(all('table:not(:has(caption))')),
    unseen: html(all('img:not([alt])')),
  };
}"""

_CUT_OFF = """() => [...document.querySelectorAll('main .scroll:not(.topology)')]
  .filter((one) => one.scrollWidth > one.clientWidth)
  .map((one) => one.getAttribute('aria-label'))"""


def check_accessible(page: Page) -> None:
    found = page.evaluate(_CHECK)
    assert found.pop("language") == "en"
    assert found.pop("title").endswith("liftlog")
    assert {what: some for what, some in found.items() if some} == {}


def check_with_axe(page: Page) -> None:
    """Check the rules of axe-core. Skips the test if axe-core is not installed."""
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
SMALLEST = 320


def check_in_every_way(page: Page, what: str) -> None:
    """Check the page in two layouts: a desktop with the light scheme, and a phone with the dark
    scheme. `make test` checks the rules of axe-core only in one of them, which `what` determines.

    In both layouts, nothing may be wider than the window, and no table wider than its container.
    """
    check_accessible(page)
    page.set_viewport_size({"width": SMALLEST, "height": 800})
    assert is_as_wide_as_its_window(page), (what, SMALLEST)
    chosen = one_in(2, WAYS, what)
    for width, scheme in WAYS:
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        assert is_as_wide_as_its_window(page), (what, width)
        assert page.evaluate(_CUT_OFF) == [], (what, width)
        if (width, scheme) in chosen:
            check_with_axe(page)


def is_as_wide_as_its_window(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))
