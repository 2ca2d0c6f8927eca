"""One message to publish, checked, and the bytes that carry it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from liftlog.client.companions import envelope
from liftlog.errors import InvalidArgument
from liftlog.records.message_headers import (
    EXPECTED_LAST_SEQUENCE,
    EXPECTED_STREAM,
    KEY,
    MESSAGE_ID,
    TOMBSTONE,
)

_SUBJECT = re.compile(r"[^\s.*>\x00-\x1f\x7f]+(?:\.[^\s.*>\x00-\x1f\x7f]+)*")
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # what nats-py sends
_BREAKS_LINE = re.compile(r"[\r\n\0\ud800-\udfff]")  # or cannot be encoded at all
_WITHOUT_BLANKS = "without blanks at its ends"


class OutgoingMessage(NamedTuple):
    """A message to be stored. `value` None is a tombstone. Made by `checked`."""

    subject: str
    value: bytes | None
    key: bytes | None
    headers: Mapping[str, str]
    message_id: str | None
    use_envelope: bool = False

    def to_wire(
        self, reply: str, *, stream: str | None = None, last_sequence: int | None = None
    ) -> tuple[bytes, dict[str, str] | None]:
        """Payload and headers of one attempt.

        `stream` and `last_sequence` are preconditions: only that stream stores the message, and
        only if `last_sequence` is its last offset.
        """
        headers = dict(self.headers)
        if stream is not None:
            headers[EXPECTED_STREAM] = stream
        if self.use_envelope:
            return self._enveloped(reply, headers, last_sequence), None
        if last_sequence is not None:
            headers[EXPECTED_LAST_SEQUENCE] = str(last_sequence)
        if self.message_id is not None:
            headers[MESSAGE_ID] = self.message_id
        if self.key is not None:
            headers[KEY] = self.key.decode()
        if self.value is None:
            headers[TOMBSTONE] = "true"
        return self.value or b"", headers or None

    def _enveloped(self, reply: str, headers: dict[str, str], last: int | None) -> bytes:
        return envelope.encode(
            self.value,
            key=self.key,
            headers=headers or None,
            ack_subject=reply or None,
            message_id=self.message_id,
            expected_last_offset=last,
        )


def checked(
    subject: str,
    value: bytes | str | None,
    *,
    key: bytes | str | None,
    headers: Mapping[str, str],
    message_id: str | None,
    use_envelope: bool,
) -> OutgoingMessage:
    """A message. Raises InvalidArgument for what NATS or liftlog could not carry unchanged."""
    if not _is_subject(subject):
        raise InvalidArgument(
            f"{subject!r} is not a subject to publish on",
            hint="a subject consists of tokens joined by dots, without blanks or wildcards",
        )
    for name, text in headers.items():
        if not fits_header_line(name, text):
            raise InvalidArgument(
                f"the header {name!r} does not fit a NATS header line",
                hint=f"a header value is one line of text {_WITHOUT_BLANKS}",
            )
    if message_id is not None and (not message_id or not _fits_header(message_id)):
        raise InvalidArgument(
            f"the message id {message_id!r} does not fit a NATS header",
            hint=f"a message id is one line of text {_WITHOUT_BLANKS}, and not empty",
        )
    raw_key = _to_bytes(key, "key")
    if value is None and raw_key is None:
        raise InvalidArgument("a tombstone (value None) needs a key")
    if raw_key is not None and not use_envelope and not _fits_header(raw_key):
        raise InvalidArgument(
            f"the key {raw_key!r} does not fit a NATS header",
            hint=f"a key in a header is one line of text {_WITHOUT_BLANKS}; an envelope carries "
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
    return _SUBJECT.fullmatch(text) is not None


def _to_bytes(item: bytes | str | None, name: str) -> bytes | None:
    if not isinstance(item, str):
        return item
    try:
        return item.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"the {name} {item!r} is not valid text: {error}") from error


def fits_header_line(name: str, text: str) -> bool:
    """Whether a header arrives unchanged."""
    return _NAME.fullmatch(name) is not None and _fits_header(text)


def _fits_header(item: str | bytes) -> bool:
    """Whether it arrives unchanged: NATS clients strip blanks around a header value."""
    if isinstance(item, bytes):
        try:
            item = item.decode()
        except UnicodeDecodeError:
            return False
    return item == item.strip() and not _BREAKS_LINE.search(item)
