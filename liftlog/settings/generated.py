"""Generates a configuration file to start from, and a JSON schema, from the models of the settings.

The file has every setting, commented out, with its meaning and default. Lines that begin with `# `
are prose; `#key: value` is a setting with its default, commented out.

The schema is for editors and other checkers. The schema checks less than `liftlog config check`: it
treats subjects and addresses as plain text, and has no rules across settings. The daemon refuses
every file that the schema refuses.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from .daemon import Settings
from .keys import fields_of, section_of, summary_of
from .stream import CompactionSettings, StreamSettings, SubjectSequencesSettings
from .units import DURATION_PATTERN, SIZE_PATTERN

_WIDTH = 96
_HEAD = """\
# Configuration of the liftlog daemon:  liftlog serve -c FILE
#
# Every setting is here with its default, commented out: remove the # where you change a value.
# The environment (LIFTLOG_NATS__SERVERS=nats://a:4222) and --set nats.servers=... override this
# file. `liftlog config check -c FILE` checks it.
# Durations: 250ms, 1s, 2m, 1h30m, 7d. Sizes: 4096, 64KiB, 8MiB, 1GB.
"""
_STREAM_HEAD = """\
# One section per stream. You can also create streams with `liftlog stream create`.
#streams:
  #orders:
    #subject: orders.>
"""
_EXAMPLE_SUBJECT = "orders.>"

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PATTERNS = {"duration": DURATION_PATTERN, "size": SIZE_PATTERN}
_LISTS_FROM_TEXT = ("servers", "listen", "subject")


def render_template() -> str:
    """Return the text of the configuration file."""
    lines = [_HEAD]
    lines += _section(Settings, Settings().to_yaml_dict(), "")
    lines += ["", _STREAM_HEAD.rstrip()]
    defaults = StreamSettings.model_validate({"subject": _EXAMPLE_SUBJECT}).to_yaml_dict()
    lines += _plain(StreamSettings, defaults, "    ")
    return "\n".join(lines) + "\n"


def _section(model: type[BaseModel], values: dict[str, Any], indent: str) -> Iterator[str]:
    lead = False  # a blank line between settings, but none after the name of a section
    for key, info in fields_of(model):
        section = section_of(info)
        if (model, key) == (Settings, "streams"):
            continue
        if lead:
            yield ""
        lead = True
        if section is not None and not _may_be_null(info):
            yield from _prose(summary_of(section), indent)
            yield f"{indent}{key}:"
            yield from _section(section, values[key], f"{indent}  ")
        else:
            yield from _prose(info.description or "", indent)
            yield f"{indent}#{_setting(key, values[key])}"


def _plain(model: type[BaseModel], values: dict[str, Any], indent: str) -> Iterator[str]:
    """Yield settings without prose, for a section that is commented out as a whole."""
    for key, info in fields_of(model):
        section = section_of(info)
        if key == "subject":
            continue
        if section is not None and _may_be_null(info):
            yield f"{indent}#{_setting(key, None)}"
        elif section is not None:
            yield f"{indent}#{key}:"
            yield from _plain(section, values[key], f"{indent}  ")
        else:
            yield f"{indent}#{_setting(key, values[key])}"


def _setting(key: str, value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=1000)
    return f"{key}: {text.strip().removesuffix('...').strip()}"


def _may_be_null(info: FieldInfo) -> bool:
    return info.default is None


def _prose(text: str, indent: str) -> Sequence[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "
    )


def json_schema() -> dict[str, Any]:
    """Return the schema as a complete document."""
    schema = Settings.model_json_schema(by_alias=True)
    for section in [schema, *schema["$defs"].values()]:
        for key, setting in section.get("properties", {}).items():
            _widen(key, setting)
        _allow_empty(section)
    _write_defaults(schema, schema, Settings().to_yaml_dict())
    stream = StreamSettings.model_validate({"subject": _EXAMPLE_SUBJECT}).to_yaml_dict()
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
    if key in _LISTS_FROM_TEXT and setting.get("type") == "array":
        items = {name: setting.pop(name) for name in ("type", "items")}
        setting["anyOf"] = [items, {"type": "string"}]


def _add_numbers_and_flags(words: list[Any]) -> None:
    """Accept numbers and booleans as well, because YAML reads 0600 and 1.2 as numbers, and `on` as
    a boolean."""
    for word in list(words):
        if word in ("on", "off"):
            words.append(word == "on")
        elif word[:1].isdigit():
            words.append(float(word) if "." in word else int(word, 8))


def _allow_empty(section: dict[str, Any]) -> None:
    """Accept null for a section, because a section whose lines are all commented out is null."""
    section.pop("title", None)
    if section.get("type") == "object" and not section.get("required"):
        section["type"] = ["object", "null"]


def _write_defaults(schema: dict[str, Any], section: dict[str, Any], written: Any) -> None:
    """Write defaults in the form in which a user writes them: 7d, not 604800."""
    for key, setting in section.get("properties", {}).items():
        reference = setting.get("$ref")
        value = written.get(key)
        if reference is not None:
            _write_defaults(schema, schema["$defs"][reference.rpartition("/")[2]], value)
            setting.pop("default", None)
        elif "default" in setting:
            setting["default"] = value
