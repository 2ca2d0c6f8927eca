"""The settings of a stream as manifests and records store them, so that older versions can read
them.

A version refuses a stream with a setting that it does not know, since it cannot apply it. So a
setting that was added later is left out if its value means what older versions do anyway. Then they
can open the stream.
"""

from __future__ import annotations

from typing import Any

from liftlog.settings.stream import StreamSettings

ADDED_LATER: dict[str, Any] = {
    "retention.discard": "old",
    "jetstream": None,
}
"""Settings that the first versions lack, with the value that stands for the behaviour of those."""


def stored_form(settings: StreamSettings) -> dict[str, Any]:
    """Return what to store: keys and values as in the YAML file."""
    content = settings.to_yaml_dict()
    for path, neutral in ADDED_LATER.items():
        *sections, key = path.split(".")
        section: Any = content
        for name in sections:
            section = (section or {}).get(name)
        if section is not None and key in section and section[key] == neutral:
            del section[key]
    return content
