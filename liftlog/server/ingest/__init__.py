"""From the NATS connection to runs of messages.

batch_parser   the NATS wire protocol, many messages at a time
shapes         its fast path: one regular expression for many similar messages
transport      nats-py's TCP transport with larger reads, straight into the parser
websocket      the same over a WebSocket
seam           plugs both into nats-py; has a slower way if the parser does not fit
servers        the servers to connect to, and how to log in
endings        classifies the server's error texts: why a connection ended, what was refused
connection     one connection to one server, from login to its end
reading_pauses the pauses in which a connection was not read
subscriptions  the wanted subscriptions, and the state of each
nats_link      one connection after another; repeats refused subscriptions
dialing        reaches a server, and finds out why one is not available
counters       counts what has happened to the link
refused_acks   the acks that NATS refuses
relay          passes messages to a stream that is moving to another node
handover       moves from a server in lame duck mode to another one
overlap        takes each message once while two connections deliver it
echoes         recognises the daemon's own messages when they come back
jetstream      checks whether JetStream acks the same messages
coalescing     work under a lock, done once for all callers that wait for it
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
