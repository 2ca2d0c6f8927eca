"""Internal state of a pull server about its clients, which no answer and no metric contains."""

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
    """Return True if the server reads data from this client."""
    return connection._reading


def in_flight_of(server: PullServer) -> dict[str, InFlight]:
    """Return the requests in flight of each principal with a connection."""
    return {name: use.in_flight for name, use in server._uses.items()}


def held_of(connection: PullConnection) -> tuple[int, int]:
    """Return the number of bytes of incomplete frames, and the size of the memory that holds
    them."""
    frames: Any = connection._protocol._frames
    return frames._end - frames._start, len(frames._buffer)
