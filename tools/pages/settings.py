"""The reference page of all settings, made from the model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel

from liftlog.settings.cluster import ClusterSettings
from liftlog.settings.daemon import Settings
from liftlog.settings.keys import KeyPath, SettingsModel, dotted, fields_of, section_of, summary_of
from liftlog.settings.stream import StreamSettings

_HEAD = """\
# Settings

<!-- Made by `make pages`; a test fails when this page is out of date. -->

A setting comes from one of these sources. If several sources set the same setting, the lowest row
of the table takes precedence.

| source | example for `nats.servers` |
|---|---|
| YAML file (`liftlog serve -c FILE`) | `nats: {servers: ["nats://127.0.0.1:4222"]}` |
| environment | `LIFTLOG_NATS__SERVERS=nats://a:4222,nats://b:4222` (`__` separates levels) |
| command line | `--set nats.servers=nats://a:4222` |

The daemon reads values in the environment and in `--set` as YAML. If the type of a setting is text,
the daemon uses its value literally: the password `0123` is the text `0123`, not a number. A whole
section in the environment or in `--set` replaces this section of the file. The daemon refuses
unknown keys, duplicate keys and invalid values. It lists all mistakes, each with its path and
source. Relative paths are relative to the daemon's working directory.

Durations have the form `250ms`, `1s`, `2m`, `1h30m` or `7d`; a number without a unit means seconds.
Sizes have the form `4096`, `64KiB`, `8MiB` or `1GB`.
"""

_STREAMS_HEAD = """\
## streams.NAME

Each stream has one section. `client.create_stream` and `liftlog stream create` use the same keys.
The name of a stream has 1 to 128 characters: letters, digits, `_` and `-`. It begins with a letter
or a digit.

If the subject can match `_INBOX.>`, `$*.>` or `liftlog.>`, the stream requires `acks: off`.
"""


_LONGEST_CELL_WORDS = 36


def render() -> str:
    """The page as Markdown."""
    sections: list[str] = [_HEAD, "## Top level\n", _table(Settings, ())]
    for path, model in _sections(Settings, ()):
        sections += [f"## {dotted(path)}\n", *_summary(model), _table(model, path)]
    at: KeyPath = ("streams", "NAME")
    sections += [_STREAMS_HEAD, _table(StreamSettings, at)]
    for path, model in _sections(StreamSettings, at):
        sections += [f"### {dotted(path)}\n", *_summary(model), _table(model, path)]
    return "\n".join(sections)


def _summary(model: type[BaseModel]) -> list[str]:
    own = summary_of(model)
    return [f"{own}\n"] if own else []


def _sections(model: type[BaseModel], at: KeyPath) -> Iterator[tuple[KeyPath, type[BaseModel]]]:
    for key, info in fields_of(model):
        section, path = section_of(info), (*at, key)
        if section is not None and path != ("streams",):
            yield path, section
            yield from _sections(section, path)


def _table(model: type[BaseModel], at: KeyPath) -> str:
    """Return the table of a section. If a meaning is long, a list below has all but its start."""
    rows = ["| key | default | meaning |", "|---|---|---|"]
    notes: list[str] = []
    for key, info in fields_of(model):
        annotation = info.annotation
        if section_of(info) is annotation:
            continue
        if (*at, key) == ("streams",):
            continue
        default = "required" if info.is_required() else f"`{_default(model, key)}`"
        meaning = info.description or ""
        choices = [choice for choice in get_args(annotation) if isinstance(choice, str)]
        if not all(f"`{choice}`" in meaning for choice in choices):
            meaning += f" One of {', '.join(f'`{choice}`' for choice in choices)}."
        if len(meaning.split()) > _LONGEST_CELL_WORDS:
            meaning, rest = re.split(r"(?<=\.) (?=[A-Z`])", meaning, maxsplit=1)
            notes.append(f"- **`{key}`.** {rest}")
            meaning += " See below."
        rows.append(f"| `{key}` | {default} | {meaning} |")
    return "\n".join([*rows, "", *notes] if notes else rows) + "\n"


def _default(model: type[BaseModel], key: str) -> str:
    value: Any = _sample(model).to_yaml_dict()[key]
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(str(item) for item in value)}]"
    return str(value)


_REQUIRED: dict[type[BaseModel], dict[str, str]] = {
    StreamSettings: {"subject": "x"},
    ClusterSettings: {"node": "a", "advertise": "tcp://127.0.0.1:9292", "store": "file:///x"},
}


def _sample(model: type[BaseModel]) -> SettingsModel:
    sample = model.model_validate(_REQUIRED.get(model, {}))
    if not isinstance(sample, SettingsModel):
        raise TypeError(f"{model.__name__} is not a settings model")
    return sample
