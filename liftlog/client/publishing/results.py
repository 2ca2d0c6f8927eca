"""The possible results of a published message."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from liftlog.errors import LiftlogError


class Ack(NamedTuple):
    """The ack of a stream: it has stored the message at `offset`. If `duplicate` is true, `offset`
    is the offset of an earlier copy of the message. `durability` is the stream's setting: with
    `fsync` the record is on disk.
    """

    stream: str
    offset: int
    duplicate: bool = False
    durability: str = "fsync"


class Refusal(NamedTuple):
    """The refusal of a stream: it has not stored the message. The codes are JetStream's
    (docs/how-to/acks.md)."""

    stream: str
    code: int
    err_code: int
    description: str

    @property
    def retriable(self) -> bool:
        """True if a later attempt may succeed: the stream is paused, full or overloaded."""
        return self.code in (429, 503)

    def __str__(self) -> str:
        return f"{self.stream}: {self.description} ({self.code}/{self.err_code})"


class Published(NamedTuple):
    """The result of a message that is stored in every expected stream, or in at least one if no
    stream was named."""

    subject: str
    message_id: str | None
    acks: tuple[Ack, ...]

    @property
    def offset(self) -> int:
        """The offset of the first ack; `ack` returns the ack of a given stream."""
        return self.acks[0].offset

    @property
    def duplicate(self) -> bool:
        """True if every stream had already stored the message before."""
        return all(ack.duplicate for ack in self.acks)

    def ack(self, stream: str) -> Ack:
        """Return the ack of `stream`. Raises KeyError for a stream that was not expected."""
        for ack in self.acks:
            if ack.stream == stream:
                return ack
        raise KeyError(stream)


class PublishFailed(LiftlogError):
    """Raised if not every expected stream has acked the message.

    `acks` has the acks that arrived. `refusals` has the last refusal of each stream that refused.
    `missing` has the names of the expected streams that may or may not have stored the message.
    """

    name: ClassVar[str] = "PUBLISH_FAILED"

    def __init__(
        self,
        message: str,
        *,
        subject: str,
        message_id: str | None = None,
        acks: tuple[Ack, ...] = (),
        refusals: tuple[Refusal, ...] = (),
        missing: tuple[str, ...] = (),
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.subject = subject
        self.message_id = message_id
        self.acks = acks
        self.refusals = refusals
        self.missing = missing


class PublishRefused(PublishFailed):
    """At least one stream refused the message, and the outcome in each expected stream is known. A
    stream without an ack in `acks` has not stored the message.

    Read `err_code`. Either the message is invalid, or the stream accepts no messages at present.
    """

    name = "PUBLISH_REFUSED"

    @property
    def refusal(self) -> Refusal:
        return self.refusals[0]

    @property
    def err_code(self) -> int:
        """JetStream's code of the first refusal."""
        return self.refusals[0].err_code


class PublishUnknown(PublishFailed):
    """The outcome is unknown: the answers that the publisher received do not prove whether the
    message is stored.

    Publish the message again with the same `message_id`, within the stream's dedupe window. Or
    search for the message in the stream: records keep their message id in the header `Nats-Msg-Id`.
    """

    name = "PUBLISH_UNKNOWN"


class NotPublished(PublishFailed):
    """No stream received the message: the subject has no subscriber, or NATS was unreachable.

    Publish the message again when a stream records the subject and NATS is reachable.
    """

    name = "NOT_PUBLISHED"
    retriable = True


class OrderBroken(NotPublished):
    """The message was not stored, because the outcome of an earlier message is unknown. Either the
    publisher did not send this message, or all streams refused it.

    Decide how to handle the earlier message, then call `publisher.resume()`.
    """

    name = "ORDER_BROKEN"
    retriable = False
