"""The settings of consumers with acks."""

from __future__ import annotations

from pydantic import Field

from .keys import SettingsModel
from .units import PositiveDuration


class ConsumerSettings(SettingsModel):
    """Consumers with acks."""

    flush_interval_seconds: PositiveDuration = Field(
        default=0.05,
        alias="flush_interval",
        description="Longest time until the daemon fsyncs changes for which no client waits: "
        "deliveries, and acks without an answer. A power cut can lose the changes of this "
        "interval.",
    )
