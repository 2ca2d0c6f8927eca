"""What of a stream's settings decides about messages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SequencerConfig:
    """Sizes in bytes. `subject` is only told to publishers that speak Liftbridge's envelope."""

    stream: str
    acks: str = "on"
    durability: str = "fsync"
    max_message_bytes: int = 8 * 1024 * 1024
    group_max_bytes: int = 8 * 1024 * 1024
    recognise_envelopes: bool = True
    recognise_liftbridge: bool = False
    subject: str = ""
