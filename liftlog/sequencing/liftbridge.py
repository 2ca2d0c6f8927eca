"""Opens messages in Liftbridge's envelope, and builds their answers.

The answer is Liftbridge's Ack, which is sent to the ack inbox in the message. It contains the time
of the commit, so it is built after the commit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from acl.subjects import matches
from envelope import AckPolicy, Envelope, liftbridge
from envelope.fields import NO_HEADERS, wrong_id, wrong_key
from envelope.liftbridge import Ack
from liftlog.sequencing.acks import NEXT, Asked, Echo, publish_commands, woven
from liftlog.sequencing.config import SequencerConfig
from liftlog.sequencing.refusals import BAD_ENVELOPE, RefusalReason, refusal_body

POLICIES: dict[int, AckPolicy] = {liftbridge.LEADER: "leader", liftbridge.ALL: "all"}
ANY_OFFSET = (0, -1)
_new = tuple.__new__
# liftlog never sends the third one, ENCRYPTION.
_ERRORS = {
    "too_large": liftbridge.TOO_LARGE,
    "wrong_last_sequence": liftbridge.INCORRECT_OFFSET,
}


def open_liftbridge(
    config: SequencerConfig, subject: bytes, payload: bytes, stamp: int
) -> tuple[Envelope, Echo, RefusalReason | None] | None:
    """Open a message in Liftbridge's envelope; see `liftlog.sequencing.enveloped.open_envelope`."""
    found = liftbridge.decode_publish(payload)
    if found is None:
        return None
    # An id that a header cannot carry is not repeated in an answer either, because its length has
    # no limit.
    (offset, key, value, _, _, _, _, _, headers, ack_inbox, correlation_id, ack_policy) = found
    bad_id = bool(correlation_id and wrong_id(correlation_id))
    if bad_id:
        correlation_id = ""
    echo: Echo = correlation_id or None
    if ack_inbox:
        name = subject.decode("utf-8", "replace")
        echo = ack_to(config, name, ack_inbox, correlation_id, ack_policy, stamp)
    fields = _new(
        Envelope,
        (
            value,
            key or None,
            liftbridge.nats_headers(headers) if headers else NO_HEADERS,
            ack_inbox or None,
            correlation_id or None,
            POLICIES.get(ack_policy, "none"),
            None,  # the message id
            # This field is the offset that the publisher expects for the record. -1 means any
            # offset. 0 also means any offset, because it cannot be distinguished from an absent
            # field.
            None if offset in ANY_OFFSET else offset - 1,
        ),
    )
    return fields, echo, BAD_ENVELOPE if bad_id or wrong_key(key) else None


def ack_to(
    config: SequencerConfig,
    subject: str,
    ack_inbox: str,
    correlation_id: str,
    ack_policy: int,
    stamp: int,
) -> Ack:
    """Return the fields of a message that its ack repeats, without the offset and the time of the
    commit."""
    return _new(
        Ack,
        (config.stream, _recorded_by(config, subject), subject, 0, ack_inbox, correlation_id,
         ack_policy, stamp, 0, liftbridge.OK),
    )  # fmt: skip


def _recorded_by(config: SequencerConfig, subject: str) -> str:
    """Return the pattern, among the stream's subjects, that `subject` matches. Only this pattern is
    reported, because a stream of Liftbridge has only one subject."""
    patterns = config.subjects
    if len(patterns) == 1:
        return patterns[0]
    return next((pattern for pattern in patterns if matches(pattern, subject)), "")


def acks_to(
    config: SequencerConfig,
    subjects: Sequence[str],
    ack_inboxes: Sequence[str],
    correlation_ids: Sequence[str],
    ack_policy: int,
    stamp: int,
) -> list[Ack]:
    """Return the fields for many messages with one policy; see `ack_to`."""
    stream, error = config.stream, liftbridge.OK
    recorded_by = {name: _recorded_by(config, name) for name in set(subjects)}
    columns = zip(subjects, ack_inboxes, correlation_ids, strict=True)
    return [
        _new(
            Ack,
            (
                stream,
                recorded_by[name],
                name,
                0,
                inbox,
                correlation_id,
                ack_policy,
                stamp,
                0,
                error,
            ),
        )
        for name, inbox, correlation_id in columns
    ]


def nack_body(stream: str, refusal: RefusalReason, echo: Echo) -> bytes | None:
    """Return a nack in the format of the publisher's envelope; None if the publisher gets no
    answer.

    Liftbridge sends an Ack with an error in only two cases, and no answer in all other cases. The
    Go client of Liftbridge ignores the error, and treats every Ack as "stored". So if a message may
    be stored later, or by another node, its publisher gets no answer. The publisher then times out
    and sends the message again.
    """
    if isinstance(echo, Ack):
        error = _ERRORS.get(refusal.reason)
        return None if error is None else liftbridge.encode_ack(echo._replace(ack_error=error))
    return refusal_body(stream, refusal, echo[0] if isinstance(echo, Asked) else echo)


def ack_commands(acks: Sequence[tuple[bytes, Ack, int]], now_ns: int) -> bytes:
    """Return `PUB` commands for acks of messages that were committed at `now_ns`; the last field of
    each ack is the offset."""
    replies, echoes, offsets = zip(*acks, strict=True)
    # The acks of one run have the same time of reception, and usually the same other fields.
    received = [ack.reception_timestamp for ack in echoes]
    commands, start = [], 0
    while start < len(acks):
        end = bisect_right(received, received[start], start + 1)
        part = slice(start, end)
        commands.append(_commands(replies[part], echoes[part], offsets[part], now_ns))
        start = end
    return b"".join(commands)


def _commands(
    replies: Sequence[bytes], acks: Sequence[Ack], offsets: Sequence[int], now_ns: int
) -> bytes:
    alike = liftbridge.encode_alike_acks(acks, offsets, commit_timestamp=now_ns)
    if alike is not None:
        size, columns = alike
        line = b" %d\r\n" % size
        return woven([replies, [line] * len(acks), *columns, [NEXT] * len(acks)])
    bodies = liftbridge.encode_acks(zip(acks, offsets, strict=True), commit_timestamp=now_ns)
    return publish_commands(zip(replies, bodies, strict=True))
