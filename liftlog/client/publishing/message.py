"""A checked message to publish, and its bytes. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from liftlog.client.companions import envelope
from liftlog.client.publishing.headers import ONE_LINE, fits_header
from liftlog.errors import InvalidArgument
from liftlog.records.message_headers import (
    EXPECTED_LAST_SEQUENCE,
    EXPECTED_STREAM,
    KEY,
    MESSAGE_ID,
    TOMBSTONE,
    HeaderLine,
    build_block,
)

_EXPECTED_STREAM = EXPECTED_STREAM.encode()
_EXPECTED_LAST_SEQUENCE = EXPECTED_LAST_SEQUENCE.encode()
_MESSAGE_ID = MESSAGE_ID.encode()
_KEY = KEY.encode()
_TOMBSTONE = TOMBSTONE.encode()
# A token may contain `*` and `>`, as in NATS, but a token that is only `*` or `>` is a wildcard.
_TOKEN = r"(?![*>](?:\.|\Z))[^\s.\x00-\x1f\x7f]+"
_SUBJECT = re.compile(rf"{_TOKEN}(?:\.{_TOKEN})*")


class OutgoingMessage(NamedTuple):
    """A message to publish; `checked` makes it. If `value` is None, it is a tombstone."""

    subject: str
    value: bytes | None
    key: bytes | None
    headers: Sequence[HeaderLine]
    message_id: str | None
    use_envelope: bool = False

    def to_wire(
        self, reply: str, *, stream: str | None = None, last_sequence: int | None = None
    ) -> tuple[bytes, bytes]:
        """Return the payload and the header block of one attempt. The block is b"" if there are no
        headers.

        `stream` and `last_sequence` are preconditions: only the stream `stream` stores the message,
        and only if `last_sequence` is its last offset.
        """
        own: list[HeaderLine] = []
        if stream is not None:
            own.append((_EXPECTED_STREAM, stream.encode()))
        if self.use_envelope:
            return self._enveloped(reply, _with(self.headers, own), last_sequence)
        if last_sequence is not None:
            own.append((_EXPECTED_LAST_SEQUENCE, b"%d" % last_sequence))
        if self.message_id is not None:
            own.append((_MESSAGE_ID, self.message_id.encode()))
        if self.key is not None:
            own.append((_KEY, self.key))
        if self.value is None:
            own.append((_TOMBSTONE, b"true"))
        return self.value or b"", build_block(_with(self.headers, own))

    def _enveloped(
        self, reply: str, lines: Sequence[HeaderLine], last: int | None
    ) -> tuple[bytes, bytes]:
        """Return the message as an envelope, and the header block. If an envelope cannot hold the
        headers, all headers stay in the header block, so that the lines keep their order."""
        fitting = _enveloped_headers(lines)
        payload = envelope.encode(
            self.value,
            key=self.key,
            headers=fitting or None,
            ack_subject=reply or None,
            message_id=self.message_id,
            expected_last_offset=last,
        )
        return payload, b"" if fitting is not None else build_block(lines)


def _with(lines: Sequence[HeaderLine], own: list[HeaderLine]) -> Sequence[HeaderLine]:
    """Return the lines whose names are not in `own`, followed by `own`."""
    if not lines or not own:
        return lines or own
    names = {name for name, _ in own}
    return [line for line in lines if line[0] not in names] + own


def _enveloped_headers(lines: Sequence[HeaderLine]) -> dict[str, str] | None:
    """Return the headers for an envelope; None if the envelope cannot hold them. An envelope has
    one text for each name, and limits the size of its headers."""
    try:
        found = {name.decode(): value.decode() for name, value in lines}
    except UnicodeDecodeError:
        return None
    is_whole = len(found) == len(lines) and not envelope.fields.wrong_headers(found)
    return found if is_whole else None


def checked(
    subject: str,
    value: bytes | str | None,
    *,
    key: bytes | str | None,
    headers: Sequence[HeaderLine],
    message_id: str | None,
    use_envelope: bool,
) -> OutgoingMessage:
    """Return a message for these arguments. Raises InvalidArgument if NATS or liftlog could not
    carry the message unchanged."""
    if not _is_subject(subject):
        raise InvalidArgument(
            f"{subject!r} is not a subject to publish on",
            hint="a subject consists of tokens joined by dots, without blanks or wildcards",
        )
    if message_id is not None and (not message_id or not fits_header(message_id)):
        raise InvalidArgument(
            f"the message id {message_id!r} does not fit a NATS header",
            hint=f"a message id is {ONE_LINE}, and not empty",
        )
    raw_key = _to_bytes(key, "key")
    if value is None and raw_key is None:
        raise InvalidArgument("a tombstone (value None) needs a key")
    if raw_key is not None and not use_envelope and not fits_header(raw_key):
        raise InvalidArgument(
            f"the key {raw_key!r} does not fit a NATS header",
            hint=f"a key in a header is {ONE_LINE}; an envelope carries "
            "any bytes: Publisher(..., use_envelope=True), `liftlog pub --envelope`",
        )
    message = OutgoingMessage(
        subject, _to_bytes(value, "value"), raw_key, headers, message_id, use_envelope
    )
    if use_envelope:
        try:
            message.to_wire("_INBOX.x", stream="s", last_sequence=0)
        except (ValueError, TypeError) as error:
            raise InvalidArgument(f"this does not fit an envelope: {error}") from error
    return message


@lru_cache(maxsize=256)
def _is_subject(text: str) -> bool:
    """Return True if the text is a subject without wildcards. In the text, bytes that are not UTF-8
    are decoded with `surrogateescape`."""
    try:
        text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return False
    return _SUBJECT.fullmatch(text) is not None


def _to_bytes(item: bytes | str | None, name: str) -> bytes | None:
    if not isinstance(item, str):
        return item
    try:
        return item.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"the {name} {item!r} is not valid text: {error}") from error
