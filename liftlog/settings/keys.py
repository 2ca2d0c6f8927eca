"""The base of all setting models, key paths, and the differences between two configurations."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from pathlib import PurePath
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, SecretStr, model_validator
from pydantic.fields import FieldInfo

KeyPath = tuple[str | int, ...]
"""A sequence of keys, from the outermost section inwards. A number is the index of a list item."""

_MAX_SHOWN = 80
_PLAIN_KEY = re.compile(r"[\w-]{1,128}")


class SettingsModel(BaseModel):
    """Base class of all sections. Immutable; unknown keys are refused; keys are the YAML keys, not
    the attribute names."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _empty_section(cls, value: Any) -> Any:
        # In YAML a section whose lines are all commented out is null.
        return {} if value is None else value

    def to_yaml_dict(self) -> dict[str, Any]:
        """Return keys and values in the form in which a user writes them; secrets are masked."""
        return self.model_dump(mode="json", by_alias=True)


def dotted(path: KeyPath) -> str:
    """Return a path as text: `streams.orders.subject`, `nats.servers[1]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            word = part if _PLAIN_KEY.fullmatch(part) else repr(part[:_MAX_SHOWN])
            text += f".{word}" if text else word
    return text


def known_keys(model: type[BaseModel], path: KeyPath) -> list[str]:
    """Return the keys of the section at `path`; empty if there is no such section."""
    section = _section(model, path)
    return [] if section is None else [key for key, _ in fields_of(section)]


def fields_of(model: type[BaseModel]) -> list[tuple[str, FieldInfo]]:
    """Return the fields of a section with their keys, in the order of the file."""
    return [(info.alias or name, info) for name, info in model.model_fields.items()]


def section_of(info: FieldInfo) -> type[BaseModel] | None:
    """Return the model of a field that is a section (even if it may be null); None for other
    fields."""
    for kind in _plain_types(info.annotation):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def summary_of(model: type[BaseModel]) -> str:
    """Return the first paragraph of a section's docstring; empty if it has none."""
    own = vars(model).get("__doc__") or ""
    return " ".join(own.strip().split("\n\n")[0].split())


def is_text_field(model: type[BaseModel], path: KeyPath) -> bool:
    """Return True if the value at `path` is text, so that `012` is not read as a number. If
    `is_texts_field` is also True, the value may also be a list of texts."""
    if is_texts_field(model, path):
        return True
    return any(
        isinstance(kind, type) and issubclass(kind, (str, SecretStr, PurePath))
        for kind in _field(model, path) or ()
    )


def is_texts_field(model: type[BaseModel], path: KeyPath) -> bool:
    """Return True if the value at `path` is one text or a list of texts."""
    return any(get_origin(kind) is tuple for kind in _field(model, path) or ())


def _section(model: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    if not path:
        return model
    for kind in _field(model, path) or ():
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _field(model: type[BaseModel], path: KeyPath) -> tuple[Any, ...] | None:
    """Return the plain types that the value at `path` may have."""
    annotation: Any = model
    for part in path:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            found = dict(fields_of(annotation)).get(str(part))
            if found is None:
                return None
            annotation = found.annotation
        elif get_origin(annotation) is dict:
            annotation = get_args(annotation)[1]
        else:
            return None
    return tuple(_plain_types(annotation))


def _plain_types(annotation: Any) -> Iterator[Any]:
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _plain_types(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from _plain_types(part)
    else:
        yield annotation


def differing_keys(old: SettingsModel, new: SettingsModel) -> list[str]:
    """Return the dotted keys that differ, in the order of the file: `nats.servers`,
    `streams.orders.retention.max_age`. For a stream that exists on only one side, the result
    contains only `streams.orders`. The result contains no values, because some values are
    secret."""
    before, after = old.model_dump(by_alias=True), new.model_dump(by_alias=True)
    return [dotted(path) for path in _differing(before, after, ())]


def _differing(old: Any, new: Any, at: KeyPath) -> Iterator[KeyPath]:
    if not (isinstance(old, dict) and isinstance(new, dict)):
        if old != new:
            yield at
        return
    for key in old | new:
        if key in old and key in new:
            yield from _differing(old[key], new[key], (*at, key))
        else:
            yield (*at, key)
