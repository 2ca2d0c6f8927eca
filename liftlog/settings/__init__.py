"""The configuration model.

units      durations and sizes          base         what all models share
addresses  listen and server URLs       stream       the settings of one stream
daemon     the settings of the daemon   keys         paths of keys, and the models along them
sources    file < environment < --set   findings     what is wrong, in words
checks     across fields                cautions     allowed and hardly meant
load       `load_settings`, `parse_stream_settings`
acl_file   the ACL file                 differences  between two configurations

Made from the model: `template` (a file to begin with), `schema` (for editors), and
docs/reference/settings.md (tools/pages).
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
