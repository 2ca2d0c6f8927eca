"""The HTTP port."""

from __future__ import annotations

from liftlog.server.http.server import HttpServer

__all__ = ["HttpServer"]
