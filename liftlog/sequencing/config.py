"""The settings of a stream that affect how its messages are judged."""

from __future__ import annotations

from dataclasses import dataclass

from envelope import AckPolicy


@dataclass(frozen=True, slots=True)
class SequencerConfig:
    """Settings of one sequencer; sizes are in bytes.

    `subjects` are only reported to publishers that use Liftbridge's envelope. `is_replicated` means
    that other nodes hold copies of the stream. In such a stream, acks under the policy `leader` are
    sent when the message is durable on this node, and acks under `all` when the message is
    committed. Answers to liftlog's envelope contain the policy and `leader_epoch`. `ack_policy`
    applies to messages that do not request a policy.

    With `is_bucket` the newest record of a subject replaces its older records, as in a key-value
    bucket of JetStream: a record without a key gets its subject as key, and a message may roll up
    its subject. With `one_per_subject` a message is refused if its subject already has a record.
    With `rolls_up` a message may erase the older records of its subject, or of the stream.
    """

    stream: str
    acks: str = "on"
    durability: str = "fsync"
    max_message_bytes: int = 8 * 1024 * 1024
    group_max_bytes: int = 8 * 1024 * 1024
    recognise_envelopes: bool = True
    recognise_liftbridge: bool = False
    subjects: tuple[str, ...] = ()
    is_replicated: bool = False
    ack_policy: AckPolicy = "all"
    leader_epoch: int = 0
    is_bucket: bool = False
    one_per_subject: bool = False
    rolls_up: bool = False
