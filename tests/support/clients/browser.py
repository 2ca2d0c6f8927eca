"""A real, headless Chromium for tests of the web page."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, sync_playwright

# The headless shell draws no window around a page. A page in a context of its own takes a fifth of
# the time.
_NAMES = (
    "chromium-headless-shell", "chromium", "chromium-browser", "google-chrome",
    "google-chrome-stable",
)  # fmt: skip
_ARGUMENTS = [
    "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip
TIMEOUT_MS = 15_000
_DESK = ViewportSize(width=1280, height=720)


def find_chromium() -> str:
    """Skip the test if there is no Chromium. With CI=true, fail the test."""
    found = os.environ.get("LIFTLOG_TEST_BROWSER") or next(
        filter(None, map(shutil.which, _NAMES)), ""
    )
    if not found:
        how = "no Chromium found: apt install chromium (Debian), or set LIFTLOG_TEST_BROWSER"
        if os.environ.get("CI"):
            pytest.fail(how)
        pytest.skip(how)
    return found


@contextmanager
def chromium() -> Iterator[Browser]:
    arguments = [*_ARGUMENTS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=arguments)
        try:
            yield browser
        finally:
            browser.close()


class Window:
    """A context with one page. Problems in the page fail the test at its end: errors of scripts,
    violations of the Content-Security-Policy, dialogs, and requests to other hosts.

    Animations are switched off, so that colours and sizes do not change while a test reads them.
    """

    def __init__(self, browser: Browser, base: str, **options: object) -> None:
        self.base = base
        options = {"reduced_motion": "reduce", **options}
        self.context: BrowserContext = browser.new_context(base_url=base, **options)  # type: ignore[arg-type]
        self.context.set_default_timeout(TIMEOUT_MS)
        self.page: Page = self.context.new_page()
        self.wrong: list[str] = []
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("console", self._console)
        self.page.on("dialog", self._dialog)
        self.page.on("request", self._request)

    def _console(self, message: object) -> None:
        text = f"{message.type}: {message.text}"  # type: ignore[attr-defined]
        expected = "Failed to load resource" in text  # our page with status 4xx
        if text.startswith("error") and not expected:
            self.wrong.append(text)

    def _dialog(self, dialog: object) -> None:
        self.wrong.append(f"dialog: {dialog.message}")  # type: ignore[attr-defined]
        dialog.dismiss()  # type: ignore[attr-defined]

    def _request(self, request: object) -> None:
        url = str(request.url)  # type: ignore[attr-defined]
        if not url.startswith((self.base, "data:", "about:")):
            self.wrong.append(f"request: {url}")

    def reset(self) -> None:
        """Reset the window: an empty page, no cookies, and the size and colours of a desktop."""
        for other in self.context.pages:
            if other != self.page:
                other.close()
        if self.page.url.startswith("http"):
            self.page.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
        self.page.goto("about:blank")
        self.context.clear_cookies()
        self.page.set_viewport_size(_DESK)
        self.page.emulate_media(color_scheme="null")
        wrong, self.wrong = self.wrong, []
        assert wrong == []


NewWindow = Callable[..., Window]


class Windows:
    """The windows of a browser. Creating a window with its first page takes 2 s of processor time.
    So windows are reused by later tests that request a window of the same kind."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._free: dict[str, list[Window]] = {}
        self._taken: list[tuple[str, Window]] = []

    def take(self, base: str, viewport: ViewportSize = _DESK, **options: object) -> Window:
        kind = f"{base} {sorted(options.items())}"
        free = self._free.setdefault(kind, [])
        window = free.pop() if free else Window(self._browser, base, **options)
        self._taken.append((kind, window))
        window.page.set_viewport_size(viewport)
        return window

    def give_back_all(self) -> None:
        """Reset all windows. Raises AssertionError if there was a problem in one of them."""
        taken, self._taken = self._taken, []
        for kind, window in taken:
            window.reset()
            self._free[kind].append(window)


def run_apart(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` in another thread, because Playwright has an event loop in this thread."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, work).result()
