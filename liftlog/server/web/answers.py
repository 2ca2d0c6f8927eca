"""Answers to requests for pages: rendered templates, JSON, static files and redirects, each with
its required headers."""

from __future__ import annotations

import asyncio
import functools
import json
import time
from importlib import resources
from typing import Any

import jinja2
from aiohttp import web

import liftlog
from liftlog.server.vitals.slices import Slices
from liftlog.server.web import content, formats, outline, troubles
from liftlog.server.web.history import FINEST, SPANS

HEADERS = {
    # The browser loads only this site's own files and runs no inline script, so markup in a record
    # has no effect.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}

STATIC = {
    "liftlog.css": "text/css",
    "records.css": "text/css",
    "charts.js": "text/javascript",
    "live.js": "text/javascript",
    "records.js": "text/javascript",
    "logo.svg": "image/svg+xml",
}


_SPARK_POINTS = SPANS[FINEST].kept
_LOOK_EVERY = 64


@functools.cache
def _environment() -> jinja2.Environment:
    """Return the environment that caches compiled templates until the process ends."""
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("liftlog.server.web"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    templates.filters.update(
        count=formats.count,
        size=formats.size,
        rate=formats.rate,
        percent=formats.percent,
        moment=formats.moment,
        duration=formats.duration,
        ago=lambda timestamp_ns: formats.ago(timestamp_ns, time.time_ns()),
        spark=lambda history: formats.spark_points(history, _SPARK_POINTS),
        spark_area=lambda history: formats.spark_area(history, _SPARK_POINTS),
        visible=content.visible,
        in_words=troubles.in_words,
        folded=outline.folded,
    )
    templates.globals.update(
        version=liftlog.__version__,
        spark_width=formats.SPARK_WIDTH,
        spark_height=formats.SPARK_HEIGHT,
    )
    return templates


class Rendering:
    """Renders templates a slice at a time, so that a long page does not block the event loop.

    Everything in `{{ }}` is escaped; no template uses `safe`.
    """

    def __init__(self) -> None:
        self._templates = _environment()
        self._loaded: dict[str, jinja2.Template] = {}

    async def page(self, name: str, **values: Any) -> str:
        template = self._loaded.get(name)
        if template is None:
            # Compiling a template takes long; it is done once.
            template = await asyncio.to_thread(self._templates.get_template, name)
            self._loaded[name] = template
        parts: list[str] = []
        slices = Slices()
        for part in template.generate(**values):
            parts.append(part)
            if len(parts) % _LOOK_EVERY == 0:
                await slices.pause()
        return "".join(parts)


def html(text: str, status: int = 200) -> web.Response:
    body = text.encode("utf-8", "replace")
    return web.Response(
        body=body, status=status, content_type="text/html", charset="utf-8", headers=HEADERS
    )


def as_json(value: Any) -> web.Response:
    text = json.dumps(value, ensure_ascii=False, default=str) + "\n"
    body = text.encode("utf-8", "replace")
    return web.Response(
        body=body, content_type="application/json", charset="utf-8", headers=HEADERS
    )


def see_other(where: str) -> web.Response:
    """Redirect to `where`, a path of this site. Callers must not pass unchecked input."""
    return web.Response(status=303, headers={**HEADERS, "Location": where})


def static_file(name: str) -> web.Response:
    """Return the static file of this name. `name` selects one of a few known files and is never
    used as a path. Raises HTTPNotFound."""
    media = STATIC.get(name)
    if media is None:
        raise web.HTTPNotFound
    body = _read(name)
    return web.Response(
        body=body,
        content_type=media,
        charset="utf-8",
        headers={**HEADERS, "Cache-Control": "max-age=300"},
    )


_kept: dict[str, bytes] = {}


def _read(name: str) -> bytes:
    """Read a static file of a few KiB; the content is cached."""
    if name not in _kept:
        _kept[name] = (resources.files("liftlog.server.web") / "static" / name).read_bytes()
    return _kept[name]
