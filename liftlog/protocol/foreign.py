"""What a peer speaks that does not speak the pull protocol, by its first four bytes.

As the length of a frame each of these is far above any limit that holds before the login.
"""

from __future__ import annotations

from typing import NamedTuple


class Foreign(NamedTuple):
    name: str
    hint: str
    """What to do about it for the one who has dialled."""


_HTTP = Foreign(
    "HTTP", "give the address of the pull port (pull.listen, usually 9292), not of http.listen"
)
_TLS = Foreign("TLS", "use tls:// on a port that speaks TLS, and tcp:// on one that does not")
_NATS = Foreign("NATS", "give the address of the daemon's pull port, not of the NATS server")
_SSH = Foreign("SSH", "check host and port")

_KNOWN = {
    **dict.fromkeys(
        (b"HTTP", b"GET ", b"POST", b"HEAD", b"PUT ", b"DELE", b"OPTI", b"PRI "), _HTTP
    ),
    **dict.fromkeys((b"INFO", b"-ERR", b"CONN"), _NATS),
    b"SSH-": _SSH,
}
_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")  # an alert, a handshake


def foreign_protocol(first: bytes) -> Foreign | None:
    """`first` are the first four bytes that came from the peer."""
    if first[:2] in _TLS_RECORDS and first[2] <= 4:
        return _TLS
    return _KNOWN.get(first)
