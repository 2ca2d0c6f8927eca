"""Limits of the pull server: the resources that each client, and all clients together, may use."""

from __future__ import annotations

from dataclasses import dataclass, field

from liftlog.protocol.limits import HELLO_FRAME_BYTES, MIB, WireLimits
from liftlog.settings.daemon import PullSettings


@dataclass(frozen=True, slots=True)
class PullLimits:
    """The limits. `wire` is sent to every client; all other limits are internal to the server."""

    wire: WireLimits = field(default_factory=WireLimits)
    max_connections: int = 1024
    max_connections_per_principal: int = 512
    max_in_flight_per_principal: int = 4096
    """Maximum number of requests without an answer on all connections of one principal."""
    max_request_memory_bytes: int = 16 * MIB
    """Maximum memory, in bytes, of the unanswered requests (mostly their filters) on one
    connection."""
    max_request_memory_per_principal_bytes: int = 64 * MIB
    """Maximum memory, in bytes, of the unanswered requests on all connections of one principal."""
    unix_mode: int = 0o600
    hello_timeout_seconds: float = 5.0
    max_hello_bytes: int = HELLO_FRAME_BYTES
    default_fetch_bytes: int = 1 * MIB
    max_unsent_bytes: int = 16 * MIB
    """Maximum number of unsent bytes on one connection. Above it, no fetch is answered and no
    request is read."""
    max_unsent_memory_bytes: int = 256 * MIB
    """Maximum memory, in bytes, of unsent answers and unanswered requests on all connections
    together. Above it, the connection that uses the most memory is closed."""
    linger_seconds: float = 0.0005
    """Minimum time between two answers to a consumer that waits at the end of a stream."""
    write_stall_seconds: float = 600.0
    """A client is disconnected if bytes are unsent and it accepts none of them for this time. The
    time is long because a slow consumer may still be alive. A waiting connection needs open files,
    but no memory."""
    request_timeout_seconds: float = 60.0
    """Time within which a request must arrive completely after its first byte."""
    auth_failure_delay_seconds: float = 0.25
    max_pending_auths: int = 64


def limits_of(pull: PullSettings) -> PullLimits:
    """Create the limits from the settings. A limit without a setting keeps its default value."""
    return PullLimits(
        wire=WireLimits(
            max_request_bytes=pull.max_frame_bytes,
            max_in_flight=pull.max_in_flight,
            max_fetch_bytes=pull.max_fetch_bytes,
            max_wait_ms=int(pull.max_wait_seconds * 1000),
        ),
        max_connections=pull.max_connections,
        max_connections_per_principal=pull.max_connections_per_principal,
        max_in_flight_per_principal=pull.max_in_flight_per_principal,
        max_request_memory_bytes=pull.max_request_memory_bytes,
        max_request_memory_per_principal_bytes=pull.max_request_memory_per_principal_bytes,
        unix_mode=int(pull.unix_mode, 8),
        hello_timeout_seconds=pull.hello_timeout_seconds,
        max_hello_bytes=pull.max_hello_frame_bytes,
        default_fetch_bytes=pull.default_fetch_bytes,
        max_unsent_bytes=pull.max_unsent_bytes,
        max_unsent_memory_bytes=pull.max_unsent_memory_bytes,
        linger_seconds=pull.linger_seconds,
    )


ENCODED_UNSENT_BYTES = 1 * MIB
"""An answer is encoded into memory only while its connection has fewer unsent bytes than this
number."""

HELD_FRAMES_BYTES = 1 * MIB
"""Maximum memory of unsent frames on one connection. Above it, no requests are read."""

TURN_BYTES = 1 * MIB
"""Number of bytes that are sent to one connection before the event loop does other work (about 0.3
ms)."""

LAST_WORDS_SECONDS = 10.0
"""Time, in seconds, for which a refused client can read its remaining answers."""

LINGERING_CLOSE_SECONDS = 1.0
"""Time, in seconds, for which a refused client can read the reason before its socket is closed."""

LINGERING_CLOSE_BYTES = 1 * MIB
"""Number of bytes that are read and dropped during `LINGERING_CLOSE_SECONDS`. Unread bytes would
make the kernel reset the connection."""
