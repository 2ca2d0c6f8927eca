"""Reads one YAML document that a person wrote, strictly.

PyYAML's safe loader uses the last of two equal keys, turns the key `on` into True, and expands a
"billion laughs" of aliases. In this module, two equal keys are a finding, keys are always the text
in the file, nesting and size are limited, and the line of every value is stored for messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

Path = tuple[str | int, ...]

MAX_CHARACTERS = 4 * 1024 * 1024
MAX_VALUES = 200_000
MAX_DEPTH = 32

_LOADER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MERGE_TAG = "tag:yaml.org,2002:merge"
_OPENING = (yaml.MappingStartEvent, yaml.SequenceStartEvent)
_CLOSING = (yaml.MappingEndEvent, yaml.SequenceEndEvent)


@dataclass(slots=True)
class Document:
    """A parsed YAML document. `value` contains plain dicts, lists and scalars; `lines` maps each
    path to its line, from 1."""

    value: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    findings: list[tuple[Path, int, str]] = field(default_factory=list)
    """Tuples (path, line, problem). Line 0 stands for the whole text."""


class _TooMuchError(Exception):
    pass


def read_document(text: str) -> Document:
    """Read `text`. Problems are reported in `findings`, never raised."""
    document = Document()
    if len(text) > MAX_CHARACTERS:
        document.findings.append(((), 0, f"longer than {MAX_CHARACTERS} characters"))
        return document
    try:
        _check_nesting(text)
        loader = _LOADER(text)
        try:
            node = loader.get_single_node()
            if node is not None:
                document.value = _Builder(loader, document).build(node, ())
        finally:
            loader.dispose()
    except _TooMuchError as error:
        document.findings.append(((), 0, str(error)))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        # str(error) quotes the line, which may contain a secret.
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "unreadable"
        document.findings.append(((), mark.line + 1 if mark else 0, f"not valid YAML: {problem}"))
    except UnicodeError as error:  # half of a surrogate pair
        document.findings.append(((), 0, f"not valid YAML: {error}"))
    return document


def _check_nesting(text: str) -> None:
    """Limit the nesting, because PyYAML's composer recurses in C without a recursion limit."""
    depth = 0
    for event in _events(text):
        if isinstance(event, _OPENING):
            depth += 1
            if depth > MAX_DEPTH:
                raise _TooMuchError(f"nested deeper than {MAX_DEPTH} levels")
        elif isinstance(event, _CLOSING):
            depth -= 1


def _events(text: str) -> Iterator[Any]:
    return iter(yaml.parse(text, Loader=_LOADER))


class _Builder:
    def __init__(self, loader: Any, document: Document) -> None:
        self._loader = loader
        self._document = document
        self._values = 0

    def build(self, node: yaml.Node, path: Path) -> Any:
        # Aliases are counted as if their text were in their place, so both limits apply to the
        # expanded values. An alias to its own parent ends at the depth limit.
        self._values += 1
        if self._values > MAX_VALUES:
            raise _TooMuchError(
                f"more than {MAX_VALUES} values (an alias counts as all that it repeats)"
            )
        if len(path) > MAX_DEPTH:
            raise _TooMuchError(f"nested deeper than {MAX_DEPTH} levels (an alias to itself?)")
        self._document.lines[path] = node.start_mark.line + 1
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
        try:
            return self._loader.construct_object(node, deep=True)
        except (ValueError, OverflowError, LookupError, AttributeError):
            # PyYAML fails in many ways at a value that only looks like a date or a number
            # (2026-13-01), or that does not fit its tag (!!bool x). Its message may quote a secret.
            kind = node.tag.rpartition(":")[2]
            self._finding(path, node.start_mark.line + 1, f"not valid YAML: not a valid {kind}")
            return None

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self._finding(path, line, "a key must be plain text")
            elif key_node.tag == _MERGE_TAG:
                self._merge(value_node, path, line, merged)
            else:
                key = str(key_node.value)
                if key in own:
                    self._finding((*path, key), line, "this key occurs twice")
                    continue
                own[key] = self.build(value_node, (*path, key))
                self._document.lines[(*path, key)] = line
        return merged | own

    def _merge(self, node: yaml.Node, path: Path, line: int, into: dict[str, Any]) -> None:
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        for source in sources:
            if not isinstance(source, yaml.MappingNode):
                self._finding(path, line, "'<<' must name a mapping")
                continue
            # The depth limit counts path elements. A merge adds no key, so one is added here.
            value = self.build(source, (*path, "<<"))
            for key, item in value.items():
                into.setdefault(key, item)
                self._document.lines.setdefault((*path, key), line)

    def _finding(self, path: Path, line: int, problem: str) -> None:
        self._document.findings.append((path, line, problem))
