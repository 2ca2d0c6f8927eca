"""Answers with the headers that each of them must have."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from aiohttp import web

HEADERS = {
    # Nothing but our own files and no inline script: whatever a record holds stays text.
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
    "live.js": "text/javascript",
    "logo.svg": "image/svg+xml",
}


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
    """`where` is a path of ours, never what a client sent unchecked."""
    return web.Response(status=303, headers={**HEADERS, "Location": where})


def static_file(name: str) -> web.Response:
    """Raises HTTPNotFound. `name` chooses one of a few; it is no path."""
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
    """A few KiB, once."""
    if name not in _kept:
        _kept[name] = (resources.files("liftlog.server.web") / "static" / name).read_bytes()
    return _kept[name]
