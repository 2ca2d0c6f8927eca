"""Standard input for asyncio: a terminal, a pipe and a file alike."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import BinaryIO

_CHUNK_BYTES = 64 * 1024
_CHUNKS_AHEAD = 4


async def chunks(stream: BinaryIO) -> AsyncIterator[bytes]:
    """What comes in, as it comes.

    Read by a daemon thread: epoll refuses files, and a read that waits for a terminal must not
    hold up the end of the program. It reads the descriptor itself, since a thread that waits
    inside a buffered reader makes the interpreter abort when it ends.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes | OSError] = asyncio.Queue(_CHUNKS_AHEAD)

    def read() -> bytes:
        try:
            return os.read(stream.fileno(), _CHUNK_BYTES)
        except (OSError, ValueError):
            if getattr(stream, "raw", None) is not None:
                raise
            return stream.read(_CHUNK_BYTES)  # no descriptor behind it

    def work() -> None:
        with suppress(RuntimeError):  # the loop has ended
            while True:
                item: bytes | OSError
                try:
                    item = read()
                except OSError as error:
                    item = error
                asyncio.run_coroutine_threadsafe(queue.put(item), loop).result()
                if not item or isinstance(item, OSError):
                    return

    threading.Thread(target=work, name="standard-input", daemon=True).start()
    while True:
        item = await queue.get()
        if isinstance(item, OSError):
            raise item
        if not item:
            return
        yield item
