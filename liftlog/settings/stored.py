"""The settings of a stream as manifests and records store them, so that older versions can read
them.

A version of liftlog refuses a stream with an unknown setting, because it cannot apply the setting.
Therefore a newer setting is left out if its value corresponds to the behaviour of older versions.
So older versions can open the stream.
"""

from __future__ import annotations

from typing import Any

from liftlog.settings.stream import StreamSettings

ADDED_LATER: dict[str, Any] = {
    "retention.discard": "old",
    "jetstream.allow_rollup_hdrs": False,
    "jetstream": None,
}
"""Settings that the first versions do not have. Each has the value that corresponds to the
behaviour of these versions."""


def stored_form(settings: StreamSettings) -> dict[str, Any]:
    """Return the settings to store, with keys and values as in the YAML file."""
    content = settings.to_yaml_dict()
    for path, neutral in ADDED_LATER.items():
        *sections, key = path.split(".")
        section: Any = content
        for name in sections:
            section = (section or {}).get(name)
        if section is not None and key in section and section[key] == neutral:
            del section[key]
    return content
