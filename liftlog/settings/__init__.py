"""The configuration model.

keys       the base of all models; key paths; differences between two configurations
units      durations and sizes          addresses  listen addresses and server URLs
daemon     the settings of the daemon   stream     the settings of one stream
cluster    settings of a node of a cluster    consumers  settings of consumers with acks
stored     the form in which settings are stored
findings   errors of a configuration, in words   checks     checks across fields: findings, cautions
load       `load_settings`: file < environment < --set; `parse_stream_settings`; the ACL file

Made from the models: `generated` (a file to begin with, a schema for editors), and
docs/reference/settings.md (by tools/pages).
"""

from __future__ import annotations

from .addresses import parse_host_port, parse_listen
from .daemon import CleanerSettings, CommitSettings, NatsSettings, Settings
from .load import load_settings, parse_stream_settings
from .stream import CompactionSettings, StreamSettings
from .units import format_duration, format_size, parse_duration, parse_size

__all__ = [
    "CleanerSettings",
    "CommitSettings",
    "CompactionSettings",
    "NatsSettings",
    "Settings",
    "StreamSettings",
    "format_duration",
    "format_size",
    "load_settings",
    "parse_duration",
    "parse_host_port",
    "parse_listen",
    "parse_size",
    "parse_stream_settings",
]
