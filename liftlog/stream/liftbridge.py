"""Messages in Liftbridge's envelope: what they mean for a stream, and how they are answered.

The answer is Liftbridge's Ack, on the ack inbox that the message names. It bears the time of the
commit, so it is worded when the commit is known, not before.
"""

from __future__ import annotations

from collections.abc import Iterable

from envelope import AckPolicy, Envelope, liftbridge
from envelope.fields import NO_HEADERS, wrong_id, wrong_key
from envelope.liftbridge import Ack, Publish
from liftlog.stream.acks import Echo, publish_commands
from liftlog.stream.config import SequencerConfig
from liftlog.stream.refusals import BAD_ENVELOPE, Refusal, refusal_body

_POLICIES: dict[int, AckPolicy] = {liftbridge.LEADER: "leader", liftbridge.ALL: "all"}
# The third is ENCRYPTION, which never happens here.
_ERRORS = {
    "too_large": liftbridge.TOO_LARGE,
    "wrong_last_sequence": liftbridge.INCORRECT_OFFSET,
}


def open_liftbridge(
    config: SequencerConfig, subject: bytes, payload: bytes, stamp: int
) -> tuple[Envelope, Echo, Refusal | None] | None:
    """As `liftlog.stream.enveloped.open_envelope`."""
    found = liftbridge.decode_publish(payload)
    if found is None:
        return None
    # One that no header can carry is not repeated in an answer either: its length has no bound.
    bad_id = bool(found.correlation_id and wrong_id(found.correlation_id))
    correlation_id = "" if bad_id else found.correlation_id
    echo: Echo = correlation_id or None
    if found.ack_inbox:
        echo = Ack(
            stream=config.stream,
            partition_subject=config.subject,
            msg_subject=subject.decode("utf-8", "replace"),
            ack_inbox=found.ack_inbox,
            correlation_id=correlation_id,
            ack_policy=found.ack_policy,
            reception_timestamp=stamp,
        )
    bad = bad_id or wrong_key(found.key)
    fields = Envelope(
        value=found.value,
        key=found.key or None,
        headers=liftbridge.nats_headers(found.headers) if found.headers else NO_HEADERS,
        ack_subject=found.ack_inbox or None,
        correlation_id=correlation_id or None,
        ack_policy=_POLICIES.get(found.ack_policy, "none"),
        expected_last_offset=_expected_last_offset(found),
    )
    return fields, echo, BAD_ENVELOPE if bad else None


def _expected_last_offset(found: Publish) -> int | None:
    """Liftbridge names the offset that the record is to get. -1 says any; 0 does so too, since
    it cannot be told from an absent one."""
    return None if found.offset in (0, -1) else found.offset - 1


def nack_body(stream: str, refusal: Refusal, echo: Echo) -> bytes | None:
    """A nack in the form that the publisher understands; None: it is told nothing.

    Liftbridge sends an Ack with an error in three cases only, and is silent in all others. Its Go
    client does not even look at the error, and takes every Ack for "stored". So a publisher whose
    message may be stored later, or elsewhere, must run into its timeout and repeat it.
    """
    if isinstance(echo, Ack):
        error = _ERRORS.get(refusal.reason)
        return None if error is None else liftbridge.encode_ack(echo._replace(ack_error=error))
    return refusal_body(stream, refusal, echo)


def ack_commands(acks: Iterable[tuple[bytes, Ack]], now_ns: int) -> bytes:
    """`PUB` commands for acks of what is committed now."""
    return publish_commands(
        (reply, liftbridge.encode_ack(ack._replace(commit_timestamp=now_ns))) for reply, ack in acks
    )
