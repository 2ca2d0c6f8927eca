"""The settings of a stream that affect how its messages are judged."""

from __future__ import annotations

from dataclasses import dataclass

from envelope import AckPolicy


@dataclass(frozen=True, slots=True)
class SequencerConfig:
    """Settings of one sequencer; sizes are in bytes.

    `subjects` are only reported to publishers that use Liftbridge's envelope. With `is_replicated`
    other nodes hold copies: acks under the policy `leader` leave when a message is durable here,
    those under `all` when it is committed, and answers to liftlog's envelope name the policy and
    `leader_epoch`. `ack_policy` applies to messages that name none.

    With `is_bucket` the newest record of a subject replaces those before it, as in a key-value
    bucket of JetStream: a record without a key has its subject as key, and a message may roll up
    its subject. With `one_per_subject` a message whose subject has a record is refused.
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
