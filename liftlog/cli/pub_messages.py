"""What `liftlog pub` publishes: payloads and headers, made from the command line. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from liftlog.cli.exit_codes import ExitCode
from liftlog.cli.problems import Problem

PLACEHOLDER = "{n}"


class Outgoing(NamedTuple):
    """One message as NATS gets it."""

    subject: str
    payload: bytes
    headers: dict[str, str] | None


@dataclass(frozen=True, slots=True)
class Template:
    """What all messages of one command share."""

    subject: str
    key: str | None = None
    message_id: str | None = None
    headers: list[tuple[str, str]] = field(default_factory=list)
    use_envelope: bool = False

    def outgoing(self, payload: bytes | None, number: int | None = None) -> Outgoing:
        """`payload` None is a tombstone. A number replaces {n} in key and message id.

        Raises Problem when it does not fit an envelope.
        """
        key, message_id = _fill(self.key, number), _fill(self.message_id, number)
        headers = dict(self.headers)
        if self.use_envelope:
            return Outgoing(self.subject, _envelope(payload, key, headers, message_id), None)
        if key is not None:
            headers["Liftlog-Key"] = key
        if payload is None:
            headers["Liftlog-Tombstone"] = "true"
        if message_id is not None:
            headers["Nats-Msg-Id"] = message_id
        return Outgoing(self.subject, payload or b"", headers or None)

    def repeated(self, payload: bytes | None, count: int) -> Iterator[Outgoing]:
        """The message `count` times; {n} is replaced only when there are several."""
        if count == 1:
            yield self.outgoing(payload)
            return
        for number in range(1, count + 1):
            mark, digits = PLACEHOLDER.encode(), str(number).encode()
            text = None if payload is None else payload.replace(mark, digits)
            yield self.outgoing(text, number)


def _envelope(
    payload: bytes | None, key: str | None, headers: dict[str, str], message_id: str | None
) -> bytes:
    import envelope

    try:
        return envelope.encode(payload, key=key, headers=headers or None, message_id=message_id)
    except ValueError as error:
        raise Problem(f"this does not fit an envelope: {error}", ExitCode.USAGE) from error


def _fill(text: str | None, number: int | None) -> str | None:
    return text if text is None or number is None else text.replace(PLACEHOLDER, str(number))


class LineSplitter:
    """Chunks of bytes -> lines without their ends; what follows the last end comes from `rest`."""

    def __init__(self) -> None:
        self._pending: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterable[bytes]:
        *lines, tail = chunk.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._pending, lines[0]])
            self._pending.clear()
        if tail:
            self._pending.append(tail)
        return [line.removesuffix(b"\r") for line in lines]

    def rest(self) -> Iterable[bytes]:
        if not self._pending:
            return []
        line = b"".join(self._pending)
        self._pending.clear()
        return [line.removesuffix(b"\r")]
