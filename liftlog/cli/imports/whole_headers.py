"""A NATS connection that keeps header blocks and subjects unchanged.

nats-py itself converts headers to a mapping: a repeated name keeps only one value, and bytes that
are not UTF-8 are replaced. nats-py treats a stored message with a header `Status` as a message from
the server, and closes its connection at a subject that is not UTF-8.
"""

from __future__ import annotations

from typing import Any

from nats.aio.client import Client

_STATUS_LINE = b"NATS/1.0 "


class BlockHeaders(dict[str, str]):
    """The header block as bytes, and the mapping of headers that nats-py reads from it."""

    def __init__(self, block: bytes, found: dict[str, str]) -> None:
        super().__init__(found)
        self.block = block


class WholeHeaders(Client):
    """A client whose messages have BlockHeaders (None without headers), and subjects that are
    decoded with `surrogateescape`."""

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        if not headers:
            return None
        if headers.startswith(_STATUS_LINE):  # a message from the server itself
            return BlockHeaders(headers, await super()._process_headers(headers) or {})
        return BlockHeaders(headers, {})  # none of these headers has an effect in nats-py

    def _build_message(
        self,
        sid: int,
        subject: bytes,
        reply: bytes,
        data: bytes,
        headers: dict[str, str] | None,
    ) -> Any:
        message = super()._build_message(sid, b"", reply, data, headers)
        message.subject = subject.decode(errors="surrogateescape")
        return message
