"""Kinds of messages: the headers and payloads of a load. They are the same bytes for every system.

All frames of a load have the same length, so that one buffer contains them next to each other. The
buffer is reused, but ids must not occur again: `LAP` is overwritten with the number of the pass.
"""

from __future__ import annotations

from collections.abc import Callable

import envelope
from envelope import liftbridge

PLAIN = "plain"
LAP = b"LAP-000000"
LIFTBRIDGE = "liftbridge"

Message = tuple[bytes, bytes]
"""(header block, payload)."""


def lap(number: int) -> bytes:
    return b"LAP-%06d" % number


def _block(*lines: bytes) -> bytes:
    return b"NATS/1.0\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


def _id(inbox: str, number: int) -> bytes:
    return b"Nats-Msg-Id: %b-%b-%07d" % (inbox[-12:].encode(), LAP, number)


def _key(number: int) -> bytes:
    return b"customer-%07d" % number


def _in_liftbridge(inbox: str, number: int, payload: bytes) -> bytes:
    """Return a message as Liftbridge's Go client publishes it, with an ack inbox and a correlation
    id."""
    return liftbridge.encode_publish(
        liftbridge.Publish(
            key=_key(number),
            value=payload,
            ack_inbox=f"{inbox}.{number:07d}",
            correlation_id=f"{number:016x}",
        )
    )


KINDS: dict[str, Callable[[str, int, bytes], Message]] = {
    PLAIN: lambda inbox, number, payload: (b"", payload),
    "header": lambda inbox, number, payload: (_block(b"X-Trace: %016x" % number), payload),
    "key": lambda inbox, number, payload: (_block(b"Liftlog-Key: " + _key(number)), payload),
    "id": lambda inbox, number, payload: (_block(_id(inbox, number)), payload),
    "key+id": lambda inbox, number, payload: (
        _block(b"Liftlog-Key: " + _key(number), _id(inbox, number)),
        payload,
    ),
    # The second message of each pair is a duplicate of the first.
    "duplicates": lambda inbox, number, payload: (_block(_id(inbox, number // 2)), payload),
    "envelope": lambda inbox, number, payload: (
        b"",
        envelope.encode(payload, key=_key(number)),
    ),
    LIFTBRIDGE: lambda inbox, number, payload: (b"", _in_liftbridge(inbox, number, payload)),
}
