"""The configuration model.

units      durations and sizes        base       what all models share, stream names
addresses  listen and server URLs     stream     the settings of one stream
daemon     the settings of the daemon checks     checks across fields
sources    file < environment < --set findings   what is wrong, in words
cautions   allowed and hardly meant   differences  between two configurations
load       `load_settings`, `parse_stream_settings`
reference  writes docs/reference/settings.md (`python -m liftlog.settings.reference`)
"""

from __future__ import annotations

from .addresses import ListenAddress, ServerUrl, parse_host_port, parse_listen
from .base import STREAM_NAME, is_valid_stream_name
from .daemon import (
    AclSettings,
    CleanerSettings,
    CommitSettings,
    HttpSettings,
    IngestSettings,
    LoggingSettings,
    LogSettings,
    NatsSettings,
    NatsTlsSettings,
    PullSettings,
    Settings,
)
from .load import load_settings, parse_stream_settings
from .stream import (
    BatchSettings,
    CompactionSettings,
    DedupeSettings,
    FlushSettings,
    RebatchSettings,
    RetentionSettings,
    SegmentSettings,
    StreamSettings,
)
from .units import format_duration, format_size, parse_duration, parse_size

__all__ = [
    "STREAM_NAME",
    "AclSettings",
    "BatchSettings",
    "CleanerSettings",
    "CommitSettings",
    "CompactionSettings",
    "DedupeSettings",
    "FlushSettings",
    "HttpSettings",
    "IngestSettings",
    "ListenAddress",
    "LogSettings",
    "LoggingSettings",
    "NatsSettings",
    "NatsTlsSettings",
    "PullSettings",
    "RebatchSettings",
    "RetentionSettings",
    "SegmentSettings",
    "ServerUrl",
    "Settings",
    "StreamSettings",
    "format_duration",
    "format_size",
    "is_valid_stream_name",
    "load_settings",
    "parse_duration",
    "parse_host_port",
    "parse_listen",
    "parse_size",
    "parse_stream_settings",
]
