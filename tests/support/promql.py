"""Parses enough of PromQL to find the metrics and labels in an expression."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*")
      | (?P<duration>\d+(?:ms|[smhdwy])\b)
      | (?P<number>\d+(?:\.\d+)?(?:e[+-]?\d+)?)
      | (?P<name>[a-zA-Z_:$][a-zA-Z0-9_:]*)
      | (?P<operator>=~|!~|!=|==|<=|>=|[-+*/%^<>=(){}\[\],])
      | (?P<blank>\s+)""",
    re.VERBOSE,
)
_WORDS = {"and", "or", "unless", "offset", "bool", "atan2"}
_LABEL_LISTS = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_FUNCTIONS = """
    abs avg avg_over_time ceil changes clamp_max clamp_min count delta deriv floor
    histogram_quantile increase label_replace max max_over_time min min_over_time predict_linear
    rate resets round sum time topk vector
"""
FUNCTIONS = set(_FUNCTIONS.split())


class Selector(NamedTuple):
    """One selected metric. `grouped` are the labels of `by` in the whole expression."""

    metric: str
    labels: dict[str, str]


class Expression(NamedTuple):
    selectors: list[Selector]
    grouped: set[str]
    """The labels that `by`, `on` and similar clauses name."""


def tokens(text: str) -> list[tuple[str, str]]:
    """Return pairs (kind, text). Raises ValueError for text that is no PromQL."""
    found, position = [], 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"not PromQL: {text[position:]!r}")
        position = match.end()
        assert match.lastgroup is not None
        if match.lastgroup != "blank":
            found.append((match.lastgroup, match[0]))
    return found


def read(text: str) -> Expression:
    """Parse an expression. Raises ValueError for unbalanced brackets and unknown functions."""
    found = tokens(text)
    _check_balance(found)
    stream = iter(enumerate(found))
    selectors: list[Selector] = []
    grouped: set[str] = set()
    for place, (kind, word) in stream:
        if kind != "name" or word in _WORDS or word.startswith("$"):
            continue
        following = found[place + 1][1] if place + 1 < len(found) else ""
        if word in _LABEL_LISTS:
            grouped |= set(_names_until(stream, ")"))
        elif following == "{":
            selectors.append(Selector(word, _matchers(stream)))
        elif following == "(" or (word in FUNCTIONS and following in _LABEL_LISTS):
            if word not in FUNCTIONS:
                raise ValueError(f"unknown function {word}")
        else:
            selectors.append(Selector(word, {}))
    return Expression(selectors, grouped)


def _check_balance(found: list[tuple[str, str]]) -> None:
    closing, opened = {")": "(", "]": "[", "}": "{"}, []
    for _, word in found:
        if word in closing.values():
            opened.append(word)
        elif word in closing and (not opened or opened.pop() != closing[word]):
            raise ValueError(f"unbalanced {word}")
    if opened:
        raise ValueError(f"unbalanced {opened[-1]}")


_Stream = Iterator[tuple[int, tuple[str, str]]]


def _names_until(stream: _Stream, end: str) -> Iterator[str]:
    for _, (kind, word) in stream:
        if word == end:
            return
        if kind == "name":
            yield word


def _matchers(stream: _Stream) -> dict[str, str]:
    labels, name = {}, ""
    for _, (kind, word) in stream:
        if word == "}":
            break
        if kind == "name":
            name = word
        elif kind == "string":
            labels[name] = word[1:-1]
    return labels
