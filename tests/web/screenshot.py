"""Takes the picture of the web page for README and docs: `make screenshot`, six minutes.

A real daemon with compaction, consumers, and a shop that publishes for five minutes, so
that the curve is a whole one. What the page is made of is noted in the picture, and a test says
when that has changed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import random
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import nats
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from support.clients.browser import chromium
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from liftlog.client import connect_sync

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs/images/web-stream.png"
NOTE = "made from"
WEB = ROOT / "liftlog/server/web"
PARTS = ("static/liftlog.css", "static/logo.svg", "templates/base.html", "templates/macros.html",
         "templates/stream.html")  # fmt: skip
WIDTH, HEIGHT = 1180, 890
SECONDS = 300.0
ORDERS = 4000
STREAM = {
    "subject": "orders.>",
    "segment": {"max_bytes": "192KiB"},
    "retention": {"max_age": "30d", "max_bytes": "10GiB"},
    "compaction": {"min_lag": "0s"},
}


def digest() -> str:
    """Of what the page in the picture is made of."""
    return hashlib.sha256(b"\0".join((WEB / part).read_bytes() for part in PARTS)).hexdigest()


def order(number: int, chance: random.Random) -> tuple[str, bytes, dict[str, str]]:
    country = chance.choice(("de", "fr", "us", "jp"))
    body = {"order": number, "country": country, "cents": chance.randrange(500, 90_000),
            "items": [{"sku": f"SKU-{chance.randrange(900)}", "count": chance.randrange(1, 5)}],
            "note": "x" * chance.randrange(60)}  # fmt: skip
    return f"orders.{country}.placed", json.dumps(body).encode(), {"Liftlog-Key": f"{number}"}


async def sell(url: str, rate: float, closed: threading.Event) -> None:
    """About `rate` orders a second, more and fewer as the day goes by, until the shop is closed."""
    chance = random.Random(1)
    connection = await nats.connect(url)
    began, sold = time.monotonic(), 0
    while not closed.is_set():
        now = time.monotonic() - began
        for _ in range(int(rate / 4 * (1.3 + math.sin(now / 35) + chance.random() / 3))):
            sold += 1
            subject, body, headers = order(sold % ORDERS, chance)
            await connection.publish(subject, body, headers=headers)
        await connection.flush()
        await asyncio.sleep(0.25)
    await connection.close()


def consume(daemon: Daemon) -> None:
    """Three consumers, of which one is far behind."""
    with connect_sync(daemon.pull_address) as client:
        end = client.describe_stream("orders").high_watermark
        for name, share in (("billing", 1.0), ("warehouse", 0.995), ("lake-export", 0.8)):
            client.commit_checkpoint(name, "orders", max(1, int(end * share)))


def picture(daemon: Daemon, to: Path) -> None:
    with chromium() as browser:
        page = browser.new_page(
            viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light", device_scale_factor=1
        )
        page.goto(f"http://{daemon.http_address}/ui/streams/orders")
        page.screenshot(path=to)


def main(seconds: float = SECONDS) -> None:
    settings: dict[str, Any] = {"name": "shop", "streams": {"orders": STREAM}}
    with NatsServer() as server, Daemon(server.url, settings) as daemon:
        closed = threading.Event()
        shop = threading.Thread(target=lambda: asyncio.run(sell(server.url, 60, closed)))
        shop.start()
        closed.wait(seconds)
        consume(daemon)
        with tempfile.TemporaryDirectory() as place:
            taken = Path(place) / "page.png"
            try:
                picture(daemon, taken)
            finally:
                closed.set()
                shop.join()
            note = PngInfo()
            note.add_text(NOTE, digest())
            colours = Image.open(taken).convert("RGB").quantize(128, dither=Image.Dither.NONE)
            colours.save(PICTURE, pnginfo=note, optimize=True)
    print(PICTURE, PICTURE.stat().st_size, "bytes")


if __name__ == "__main__":
    main(*(float(argument) for argument in sys.argv[1:]))
