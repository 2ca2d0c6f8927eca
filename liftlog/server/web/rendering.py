"""Templates, rendered a slice at a time so that a long page does not hold the event loop."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import jinja2

import liftlog
from liftlog.server.web import content, formats
from liftlog.server.web.picture import SPARK_HEIGHT, SPARK_WIDTH, spark_area, spark_points
from liftlog.server.web.rates import KEPT

_TURN_SECONDS = 0.002
_LOOK_EVERY = 64


class Rendering:
    """What stands in `{{ }}` is escaped, whatever it is; nothing in a template says `safe`."""

    def __init__(self) -> None:
        self._templates = jinja2.Environment(
            loader=jinja2.PackageLoader("liftlog.server.web"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._templates.filters.update(
            count=formats.count,
            size=formats.size,
            rate=formats.rate,
            percent=formats.percent,
            moment=formats.moment,
            duration=formats.duration,
            ago=lambda timestamp_ns: formats.ago(timestamp_ns, time.time_ns()),
            spark=lambda history: spark_points(history, KEPT),
            spark_area=lambda history: spark_area(history, KEPT),
            visible=content.visible,
        )
        self._templates.globals.update(
            version=liftlog.__version__, spark_width=SPARK_WIDTH, spark_height=SPARK_HEIGHT
        )
        self._loaded: dict[str, jinja2.Template] = {}

    async def page(self, name: str, **values: Any) -> str:
        template = self._loaded.get(name)
        if template is None:
            # Translating it takes long, and once.
            template = await asyncio.to_thread(self._templates.get_template, name)
            self._loaded[name] = template
        parts: list[str] = []
        turn_began = time.perf_counter()
        for part in template.generate(**values):
            parts.append(part)
            if len(parts) % _LOOK_EVERY == 0 and time.perf_counter() - turn_began > _TURN_SECONDS:
                await asyncio.sleep(0)
                turn_began = time.perf_counter()
        return "".join(parts)
