"""Keys of the configuration: paths of them, and what the models have at a path."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from pathlib import PurePath
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

KeyPath = tuple[str | int, ...]
"""Keys from the top down; numbers count the items of a list."""

_MAX_SHOWN = 80
_PLAIN_KEY = re.compile(r"[\w-]{1,128}")


def dotted(path: KeyPath) -> str:
    """`streams.orders.subject`, `nats.servers[1]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            word = part if _PLAIN_KEY.fullmatch(part) else repr(part[:_MAX_SHOWN])
            text += f".{word}" if text else word
    return text


def known_keys(model: type[BaseModel], path: KeyPath) -> list[str]:
    """The keys that the section at `path` has; empty when there is no such section."""
    section = _section(model, path)
    return [] if section is None else [key for key, _ in fields_of(section)]


def fields_of(model: type[BaseModel]) -> list[tuple[str, FieldInfo]]:
    """The fields of a section by their keys, in the order of the file."""
    return [(info.alias or name, info) for name, info in model.model_fields.items()]


def section_of(info: FieldInfo) -> type[BaseModel] | None:
    """The model of a field that is a section, also of one that may be null."""
    for kind in _plain_types(info.annotation):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def summary_of(model: type[BaseModel]) -> str:
    """What a section says of itself in one line; empty when that is nothing."""
    own = vars(model).get("__doc__")
    return own.strip().splitlines()[0] if own else ""


def is_text_field(model: type[BaseModel], path: KeyPath) -> bool:
    """Whether what stands at `path` is text, so that `012` there is not a number."""
    field = _field(model, path)
    if field is None:
        return False
    return any(
        isinstance(kind, type) and issubclass(kind, (str, SecretStr, PurePath)) for kind in field
    )


def _section(model: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    if not path:
        return model
    for kind in _field(model, path) or ():
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _field(model: type[BaseModel], path: KeyPath) -> tuple[Any, ...] | None:
    """The plain types that the value at `path` may have."""
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
