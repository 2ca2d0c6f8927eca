"""The statuses that end a pull. Clients of JetStream compare the text of a status, so the texts
here are the same as JetStream's. Priority groups have further statuses."""

from __future__ import annotations

from liftlog.deliveries.instructions import Status

TIMED_OUT = b"408 Request Timeout"
_MESSAGES, _BYTES = b"Nats-Pending-Messages", b"Nats-Pending-Bytes"

_UNITS = ((3_600_000_000_000, "h"), (60_000_000_000, "m"))
_FRACTIONS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "\N{MICRO SIGN}s"))


def left_over(reply: bytes, words: bytes, left: int, left_bytes: int) -> Status:
    """Return a status with the remaining counts of a pull. Clients evaluate these counts."""
    return Status(reply, words, ((_MESSAGES, left), (_BYTES, left_bytes)))


def heartbeat(reply: bytes, sequence: int, offset: int) -> Status:
    """Return the status that is sent as a heartbeat. `sequence` is the consumer sequence of the
    newest delivery. `offset` is the newest record that was examined."""
    last = (b"Nats-Last-Consumer", sequence), (b"Nats-Last-Stream", offset)
    return Status(reply, b"100 Idle Heartbeat", last)


def exceeded(reply: bytes, limit: str, value: str) -> Status:
    return Status(reply, f"409 Exceeded {limit} of {value}".encode())


def go_duration(ns: int) -> str:
    """Return a duration above 0 as Go prints it: `1m30s`, `1.5ms`."""
    if ns < _FRACTIONS[0][0]:
        for unit, name in _FRACTIONS[1:]:
            if ns >= unit:
                return _decimal(ns, unit) + name
        return f"{ns}ns"
    text = ""
    for unit, name in _UNITS:
        if ns >= unit or text:
            text += f"{ns // unit}{name}"
            ns %= unit
    return text + _decimal(ns, _FRACTIONS[0][0]) + "s"


def _decimal(ns: int, unit: int) -> str:
    digits = len(str(unit)) - 1
    return f"{ns // unit}.{ns % unit:0{digits}d}".rstrip("0").rstrip(".")
