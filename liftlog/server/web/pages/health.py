"""How the daemon is: what `/livez` and `/readyz` say, and what it says of itself."""

from __future__ import annotations

from typing import Any

from liftlog.server.web.asking import Asked, Shown


async def health(asked: Asked) -> Shown:
    parts = asked.parts
    ready, readiness = await parts.health.readiness()
    data: dict[str, Any] = {"ready": ready, **readiness, "live": parts.health.liveness()}
    data["daemon"] = None
    if parts.health.is_serving:
        info = parts.broker.administration.daemon_info(lambda name: asked.may("read", name))
        data["daemon"] = info.to_wire()
    data["shape"] = [data["status"], sorted(data.get("checks", {})), data.get("warnings")]
    return Shown("Health", data)
