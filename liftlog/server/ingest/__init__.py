"""Receives messages from NATS, and passes them on as runs of messages.

batch_parser   the NATS wire protocol, many messages at a time
shapes         the parser's fast path: one regular expression for many similar messages
transport      nats-py's TCP transport with larger reads, which go directly to the parser
websocket      a transport over a WebSocket
seam           connects parser and transport to nats-py, or uses a slower way
servers        the servers to connect to, and how to log in
endings        classifies the server's errors: the end of a connection, or a refused command
connection     one connection to one server, from login to its end
reading_pauses the pauses in which a connection was not read
subscriptions  the wanted subscriptions and their states
nats_link      the permanent link, over one connection after another; repeats refused subscriptions
dialing        connects to a server, or determines why a server is not available
counters       counts the events of the link
refused_acks   the acks that NATS refuses
relay          passes messages to a stream that is moving to another node
handover       moves from a server in lame duck mode to another server
overlap        delivers each message once while two connections receive it
echoes         recognises the daemon's own messages when they come back
jetstream      checks whether JetStream acks the same messages
coalescing     does work under a lock once for all callers that wait for the lock
"""

from __future__ import annotations

import sys


def _import_nats() -> None:
    """Import nats-py without aiohttp.

    nats-py imports aiohttp, if aiohttp is installed, for its own transport over a WebSocket.
    liftlog has another one (`websocket`), and publishers would wait for the import at each start.
    """
    if "aiohttp" in sys.modules:
        return
    sys.modules["aiohttp"] = None  # type: ignore[assignment]
    try:
        import nats.aio.transport  # noqa: F401
    finally:
        del sys.modules["aiohttp"]


def give_nats_aiohttp() -> None:
    """Let nats-py use aiohttp for clients outside this package."""
    import aiohttp
    import nats.aio.transport

    vars(nats.aio.transport)["aiohttp"] = aiohttp


_import_nats()
