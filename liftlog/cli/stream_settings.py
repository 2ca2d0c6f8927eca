"""`--set key=value` for a stream: from text to the mapping that the daemon checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from liftlog.errors import InvalidArgument

# `>` alone would be an empty block of text in YAML, `*` an alias.
_NOT_YAML = tuple(">|*&!%@`")


def parse_assignments(assignments: Sequence[str]) -> dict[str, Any]:
    """`retention.max_age=7d` -> {"retention": {"max_age": "7d"}}; values are read as YAML.

    Raises InvalidArgument for text that is no assignment. What the keys mean and which values
    they take is the daemon's to say.
    """
    settings: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        path = key.strip().split(".")
        if not equals or "" in path:
            raise InvalidArgument(
                f"--set {assignment}: expected KEY=VALUE",
                hint="for example --set retention.max_messages=1000",
            )
        section = settings
        for part in path[:-1]:
            inner = section.setdefault(part, {})
            if not isinstance(inner, dict):
                raise InvalidArgument(f"--set {key}: {part!r} was given a value before")
            section = inner
        section[path[-1]] = _value(key, text)
    return settings


def _value(key: str, text: str) -> Any:
    if text.strip().startswith(_NOT_YAML):
        return text.strip()
    from acl.document import read_document

    document = read_document(text)
    if document.findings:
        raise InvalidArgument(f"--set {key}: {document.findings[0][2]}")
    value = document.value
    # Dates and the like have no place in a setting, but a subject may look like one.
    plain = value is None or isinstance(value, (str, bool, int, float, list, dict))
    return value if plain else text
