"""What can come of a published message."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from liftlog.errors import LiftlogError


class Ack(NamedTuple):
    """A stream has stored the message at `offset`. `duplicate`: it had done so before.

    `durability` is the stream's: with `fsync` the record is on disk.
    """

    stream: str
    offset: int
    duplicate: bool = False
    durability: str = "fsync"


class Refusal(NamedTuple):
    """A stream has not stored the message. The codes are JetStream's (docs/how-to/acks.md)."""

    stream: str
    code: int
    err_code: int
    description: str

    @property
    def retriable(self) -> bool:
        """Whether the same message may be stored later: the stream is paused, full, overloaded."""
        return self.code in (429, 503)

    def __str__(self) -> str:
        return f"{self.stream}: {self.description} ({self.code}/{self.err_code})"


class Published(NamedTuple):
    """The message is stored in every expected stream, or in one if none was named."""

    subject: str
    message_id: str | None
    acks: tuple[Ack, ...]

    @property
    def offset(self) -> int:
        """Of the first ack; `ack` has the one of a certain stream."""
        return self.acks[0].offset

    @property
    def duplicate(self) -> bool:
        """Whether no stream stored anything new."""
        return all(ack.duplicate for ack in self.acks)

    def ack(self, stream: str) -> Ack:
        """Raises KeyError for a stream that was not waited for."""
        for ack in self.acks:
            if ack.stream == stream:
                return ack
        raise KeyError(stream)


class PublishFailed(LiftlogError):
    """Not every expected stream has confirmed the message.

    `acks` are those that came all the same, `refusals` the last of each refusing stream, and
    `missing` names the expected streams of which it is not known whether they stored it.
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
    """At least one stream refused the message, and nothing is uncertain: every expected stream
    either has an ack in `acks` or has not stored it.

    Look at `err_code`: the message is wrong, or the stream takes none for now.
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
    """No answer tells whether the message was stored.

    Publish it again with the same `message_id` while the stream's dedupe window lasts, or look
    for it in the stream: records keep their message id in the header `Nats-Msg-Id`.
    """

    name = "PUBLISH_UNKNOWN"


class NotPublished(PublishFailed):
    """No stream got the message: nobody listens on its subject, or NATS was out of reach.

    Publish it again once there is a stream and a connection.
    """

    name = "NOT_PUBLISHED"
    retriable = True


class OrderBroken(NotPublished):
    """Not sent, or refused everywhere: it is not certain what became of a message before it.

    Decide about that message, then `publisher.resume()`.
    """

    name = "ORDER_BROKEN"
    retriable = False
