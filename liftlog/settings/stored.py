"""The settings of a stream as manifests and records hold them, for other versions to read.

A version refuses a stream with a setting that it does not know: it cannot do what was asked. So a
setting that was added later is stored only where it asks for something. Where it has the value that
stands for what older versions do, it is left out, and these open the stream.
"""

from __future__ import annotations

from typing import Any

from liftlog.settings.stream import StreamSettings

ADDED_LATER: dict[str, Any] = {
    "retention.discard": "old",
    "jetstream": None,
}
"""Settings that the first versions do not know, with the value that says what these do."""


def stored_form(settings: StreamSettings) -> dict[str, Any]:
    """What is stored: keys and values as in the YAML file."""
    content = settings.to_yaml_dict()
    for path, neutral in ADDED_LATER.items():
        *sections, key = path.split(".")
        section: Any = content
        for name in sections:
            section = (section or {}).get(name)
        if section is not None and key in section and section[key] == neutral:
            del section[key]
    return content
