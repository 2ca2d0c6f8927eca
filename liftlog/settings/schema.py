"""The JSON schema of the configuration file, for editors and other checkers.

It checks less than `liftlog config check`: to the schema, subjects and addresses are just text, and
it does not relate settings to each other. What it refuses, the daemon refuses too.
"""

from __future__ import annotations

from typing import Any

from .daemon import Settings
from .stream import CompactionSettings, StreamSettings, SubjectSequencesSettings
from .units import DURATION_PATTERN, SIZE_PATTERN

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PATTERNS = {"duration": DURATION_PATTERN, "size": SIZE_PATTERN}
_SECTIONS_FROM_TEXT = ("servers", "listen")


def json_schema() -> dict[str, Any]:
    """The schema as a complete document."""
    schema = Settings.model_json_schema(by_alias=True)
    for section in [schema, *schema["$defs"].values()]:
        for key, setting in section.get("properties", {}).items():
            _widen(key, setting)
        _allow_empty(section)
    _write_defaults(schema, schema, Settings().to_yaml_dict())
    stream = StreamSettings(subject="x").to_yaml_dict()
    _write_defaults(schema, schema["$defs"]["StreamSettings"], stream)
    for optional in (CompactionSettings(), SubjectSequencesSettings()):
        section = schema["$defs"][type(optional).__name__]
        _write_defaults(schema, section, optional.to_yaml_dict())
    return {
        "$schema": DIALECT,
        **schema,
        "title": "liftlog",
        "description": "The configuration of the liftlog daemon.",
    }


def _widen(key: str, setting: dict[str, Any]) -> None:
    """Accept every form in which the file may hold the value."""
    setting.pop("title", None)
    for one in (setting, *setting.get("anyOf", ())):
        kind = one.pop("format", None)
        if kind in _PATTERNS:
            one["pattern"] = _PATTERNS[kind]
        if "enum" in one:
            _add_numbers_and_flags(one["enum"])
            one.pop("type", None)
    if key in _SECTIONS_FROM_TEXT and setting.get("type") == "array":
        items = {name: setting.pop(name) for name in ("type", "items")}
        setting["anyOf"] = [items, {"type": "string"}]  # with commas


def _add_numbers_and_flags(words: list[Any]) -> None:
    """YAML reads 0600 and 1.2 as numbers, and `on` as a boolean."""
    for word in list(words):
        if word in ("on", "off"):
            words.append(word == "on")
        elif word[:1].isdigit():
            words.append(float(word) if "." in word else int(word, 8))


def _allow_empty(section: dict[str, Any]) -> None:
    """A section whose lines are all commented out is null."""
    section.pop("title", None)
    if section.get("type") == "object" and not section.get("required"):
        section["type"] = ["object", "null"]


def _write_defaults(schema: dict[str, Any], section: dict[str, Any], written: Any) -> None:
    """Defaults as a user writes them: 7d, not 604800."""
    for key, setting in section.get("properties", {}).items():
        reference = setting.get("$ref")
        value = written.get(key)
        if reference is not None:
            _write_defaults(schema, schema["$defs"][reference.rpartition("/")[2]], value)
            setting.pop("default", None)
        elif "default" in setting:
            setting["default"] = value
