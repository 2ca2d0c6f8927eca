"""State of a pull server about its clients that no answer and no metric shows."""

from __future__ import annotations

from typing import Any

from liftlog.protocol.server_connection import InFlight
from liftlog.server.pull import PullServer
from liftlog.server.pull.connection import PullConnection


def connections_of(server: PullServer) -> list[PullConnection]:
    """The oldest first."""
    return list(server._connections)


def unsent_bytes_of(connection: PullConnection) -> int:
    return connection._queue.unsent_bytes


def is_reading(connection: PullConnection) -> bool:
    """Whether it takes what its client sends."""
    return connection._reading


def in_flight_of(server: PullServer) -> dict[str, InFlight]:
    """The requests in flight of each principal that has a connection."""
    return {name: use.in_flight for name, use in server._uses.items()}


def held_of(connection: PullConnection) -> tuple[int, int]:
    """Bytes of frames that have not arrived whole, and the size of the memory that holds them."""
    frames: Any = connection._protocol._frames
    return frames._end - frames._start, len(frames._buffer)
