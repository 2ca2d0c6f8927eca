"""Findings: the errors of a configuration, worded for the person who wrote it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from .keys import KeyPath, dotted, known_keys

_MAX_SHOWN = 80
_MAX_LINES = 100
_SYNONYMS = {
    "max_records": "max_messages",
    "max_msgs": "max_messages",
    "max_count": "max_messages",
    "max_size": "max_bytes",
}
"""Names of settings in other systems, each with the name in liftlog. Without this table, the error
would suggest a wrong setting with a more similar name."""
_SECRET_WORDS = ("password", "token", "secret", "seed")


@dataclass(frozen=True, slots=True)
class Finding:
    """One error of a configuration. `problem` names the wrong value and the accepted values;
    `origin` may be empty. `involved` contains the other paths that a check across fields has
    used."""

    path: KeyPath
    problem: str
    origin: str = ""
    involved: tuple[KeyPath, ...] = ()
    is_missing: bool = False
    is_unknown: bool = False

    @property
    def dotted(self) -> str:
        return dotted(self.path)

    def __str__(self) -> str:
        text = f"{self.dotted}: {self.problem}" if self.path else self.problem
        return f"{text} [{self.origin}]" if self.origin else text


def message_of(findings: Iterable[Finding], subject: str) -> str:
    """Return one message that lists all findings."""
    lines = [str(finding) for finding in findings]
    head = "1 problem" if len(lines) == 1 else f"{len(lines)} problems"
    shown = lines[:_MAX_LINES]
    if len(lines) > _MAX_LINES:
        shown.append(f"... and {len(lines) - _MAX_LINES} more")
    return "\n  ".join([f"{head} in {subject}:", *shown])


def from_validation(error: ValidationError, model: type[BaseModel], raw: Any) -> Iterator[Finding]:
    """Convert the errors of pydantic to findings."""
    for item in error.errors(include_url=False, include_context=True):
        path: KeyPath = tuple(item["loc"])
        kind = item["type"]
        if kind == "default_factory_not_called":
            continue  # a default that depends on another, invalid field
        if path[-1:] == ("[key]",):  # pydantic's mark for the key of a mapping
            path = path[:-1]
            value = path[-1]
        else:
            value = _value_at(raw, path)
        if kind == "extra_forbidden":
            yield Finding(path, unknown_key(path, model), is_unknown=True)
        elif kind == "missing":
            yield Finding(path, "required, but missing", is_missing=True)
        else:
            section = kind in ("model_type", "model_attributes_type", "dict_type")
            # Text in place of a section may be anything, even a secret, so it is not shown.
            shown = "text" if section and isinstance(value, str) else show(path, value)
            yield Finding(path, f"{shown}: {_accepted(item)}")


def _accepted(item: Any) -> str:
    kind, context = item["type"], item.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        return f"expected {context['expected']}".replace("'", "")
    if kind in ("greater_than_equal", "less_than_equal"):
        bound = "at least" if kind == "greater_than_equal" else "at most"
        return f"expected {bound} {context.get('ge', context.get('le'))}"
    return {
        "bool_type": "expected true or false",
        "int_type": "expected a whole number",
        "float_type": "expected a number",
        "string_type": "expected text (put it in quotes)",
        "path_type": "expected a path",
        "list_type": "expected a list",
        "dict_type": "expected a mapping",
        "model_type": "expected a mapping",
        "model_attributes_type": "expected a mapping",
    }.get(kind, str(item["msg"]))


def unknown_key(path: KeyPath, model: type[BaseModel]) -> str:
    """Return the message for an unknown key. The message never shows the value, because the value
    of a misspelt `password` must not be printed."""
    known = known_keys(model, path[:-1])
    word = str(path[-1])[:_MAX_SHOWN]
    meant = _SYNONYMS.get(word)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if meant in known:
        close = [meant]
    if close:
        return f"unknown key; did you mean {close[0]!r}?"
    return f"unknown key; known here: {', '.join(sorted(known))}" if known else "unknown key"


def show(path: KeyPath, value: Any) -> str:
    """Return the wrong value, shortened, and masked if it could be a secret."""
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    words = [part for part in path if isinstance(part, str)]
    if words and any(secret in words[-1].lower() for secret in _SECRET_WORDS):
        return "********"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        if "@" in value and ("servers" in words or "://" in value):
            return "********"  # credentials inside a URL
        return repr(value if len(value) <= _MAX_SHOWN else value[:_MAX_SHOWN] + "...")
    if isinstance(value, int) and value.bit_length() > 256:
        return "a very long number"
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."


def _value_at(raw: Any, path: KeyPath) -> Any:
    for part in path:
        if isinstance(raw, str):
            return raw  # a list written as text with commas
        try:
            raw = raw[part]
        except (KeyError, IndexError, TypeError):
            return None
    return raw
