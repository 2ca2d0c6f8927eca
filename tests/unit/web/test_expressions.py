"""Expressions find what Python's `re` finds, in bounded time and memory."""

from __future__ import annotations

import random
import re
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftlog.errors import InvalidArgument, MissingDependency
from liftlog.records.columns.column_set import BinaryColumn
from liftlog.server.web import conditions
from liftlog.server.web.conditions import Condition, Expression, parse_condition

_random = random.Random(1)
AB = bytes(_random.choices(b"ab", k=65_536))


def found(expression: Condition, texts: list[bytes]) -> list[bool]:
    ends = np.cumsum([0, *map(len, texts)]).astype(np.int64)
    data = np.frombuffer(b"".join(texts), np.uint8)
    return [bool(one) for one in expression(BinaryColumn(ends, data, None))]


EXPRESSIONS = ["a", "ab|cd", "^ab", "ab$", "^$", "", "a.c", "a*b+c?", "(?:ab){2,3}", "^(a|b)*c$",
               "[a-c]+x", "[^a-c\n]x", r"\d{2,}", r"^\w+\s\S+$", r"\D$", "(?i)AbC", "x{0}y",
               "^a{3}$", "ü", "[äö]b", "c.$", "(a|ab)(c|bcd)$", r"\x41\.", "[]a]", "[a-]b", "a+?b",
               "^^a$$", "(^a|b$)", "a{0,2}b", "(?i)[^a-z]", "((a)(b)*)+c", r"\bb|a\b", "[ä-ö]",
               "^[^ä]+$", "(?P<n>a)c", "a{2", "{", r"a\{,2}"]  # fmt: skip
TEXTS = ["", "a", "b", "ab", "abc", "ac", "aab", "ababab", "abcd", "cd", "c", "xy", "y", "aaa",
         "a\nc", "a c", "12", "1", "ABC", "aBcd", "über", "öb", "cä", "A.", "]", "-b", "foo bar",
         "z", "5x", "äx", "\n", "bcbc", "aabbc", "a{2", "a{,2}"]  # fmt: skip


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_as_python_finds_it(expression: str) -> None:
    known = re.compile(expression.replace("$", r"\Z"), re.ASCII)
    expected = [known.search(text) is not None for text in TEXTS]
    assert found(Expression(expression), [text.encode() for text in TEXTS]) == expected


pieces = st.recursive(
    st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "^", "$", r"\d", "ö"]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda some: f"({'|'.join(some)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}"])).map(
            lambda pair: f"({pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=8,
)


@given(pieces, st.lists(st.text("ab1ö\n", max_size=8), max_size=8))
def test_whatever_the_expression(expression: str, texts: list[str]) -> None:
    known = re.compile(expression.replace("$", r"\Z"), re.ASCII)
    expected = [known.search(text) is not None for text in texts]
    assert found(Expression(expression), [text.encode() for text in texts]) == expected


EDGES = ["^", "$", r"\A", r"\z", r"\b", r"\B", r"\Q^\E", r"\Q[\E^", r"\[^a", r"\\^"]
NO_EDGES = ["", r"\^", r"\$", "[^a]", r"[^\]]", "(?:a|b)"]


@pytest.mark.parametrize("expression", EDGES + NO_EDGES)
def test_whether_it_can_tell_where_a_value_ends(expression: str) -> None:
    """Only one that cannot is looked for in several values at once."""
    assert conditions._sees_edges(expression) == (expression in EDGES)


@given(pieces, st.lists(st.text("ab1ö\n", max_size=4), min_size=3, max_size=20), st.integers(1, 5))
def test_values_that_are_searched_together(
    expression: str, texts: list[str], together: int
) -> None:
    raw = [text.encode() for text in texts]
    alone = Expression(expression, together=1)
    assert found(Expression(expression, together=together), raw) == found(alone, raw)


def test_bytes_that_are_not_utf_8_count_as_characters() -> None:
    texts = [b"order \xff\x80 paid", b"\xc3", b"\xfc", "ü".encode(), b"\xc3\xbc\xff", b""]
    assert found(Expression("order.*paid"), texts) == [True] + [False] * 5
    assert found(Expression("^.$"), texts) == [False, True, True, True, False, False]
    assert found(Expression("ü"), texts) == [False, False, False, True, True, False]
    # Two values are not one character.
    assert found(Expression("ü"), [b"\xc3", b"\xbc"]) == [False, False]


@given(st.lists(st.binary(max_size=8), max_size=8))
def test_any_bytes(texts: list[bytes]) -> None:
    for expression in ("a.", "^.*$", "[^a]", r"\x00", "ö"):
        known = re.compile(expression.replace("$", r"\Z"), re.ASCII)
        expected = [known.search(text.decode(errors="replace")) is not None for text in texts]
        assert found(Expression(expression), texts) == expected


@pytest.mark.parametrize(
    ("expression", "text"),
    [("(a+)+$", b"a" * 100_000 + b"!"), ("(a|a)*b", b"a" * 100_000),
     ("(a*)*c", b"a" * 100_000), ("(.*)(.*)(.*)(.*)x$", b"a" * 100_000),
     ("(x+x+)+y", b"x" * 100_000), ("(a|b)*a(a|b){15}c", AB),
     ("[a-z]{1,200}@[a-z]{1,200}$", b"a" * 100_000)],
)  # fmt: skip
def test_expressions_that_take_hours_elsewhere(expression: str, text: bytes) -> None:
    compiled = Expression(expression)
    began = time.thread_time()
    assert found(compiled, [text]) == [False]
    assert time.thread_time() - began < 1


def test_the_worst_expression_takes_bounded_time() -> None:
    """It has more states than RE2 has memory for, so RE2 follows each of its steps."""
    worst = Expression("(a|b)*a(a|b){970}c")
    began = time.thread_time()
    assert found(worst, [AB]) == [False]
    assert time.thread_time() - began < 2


def test_values_that_would_take_seconds_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "_MAX_WORK", 10_000)
    assert found(Expression("a"), [b"a" * 1000, b"a" * 10_000, b"ba"]) == [True, False, True]
    assert found(Expression("a{1,200}"), [b"a" * 1000, b"a"]) == [False, True]


def test_a_search_does_not_hold_the_interpreter() -> None:
    """Commits go on in another thread, however large a value is."""
    worst = Expression("(a|b)*a(a|b){300}c")
    searching = threading.Thread(target=found, args=(worst, [AB * 8]))
    ticks = 0
    searching.start()
    while searching.is_alive():
        time.sleep(0.001)
        ticks += 1
    assert ticks > 50


def memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_hostile_expressions_take_bounded_memory() -> None:
    """Each of these visits as many states as RE2 has memory for, and the last 16 are kept."""
    found(Expression("a"), [AB])
    before = memory()
    for number in range(200):
        found(parse_condition("regex", f"(a|b)*a(a|b){{{20 + number}}}c"), [AB[:5000]])
    assert memory() - before < 12 << 20
    for expression in ("(a{1,1000}){1,1000}", "((a{1,99}){1,99}){1,99}", r"[\pL\pN]{1000}",
                       "(?i)" + "[^ä]" * 240, r"[\pL\pN]" * 120):  # fmt: skip
        with pytest.raises(InvalidArgument, match=r"too large|invalid repetition"):
            parse_condition("regex", expression)
    found(Expression("(" * 499 + "a" + ")*" * 499), [AB])
    assert memory() - before < 40 << 20


@pytest.mark.parametrize(
    ("expression", "why"),
    [("(", r"missing \)"), (")", r"unexpected \)"), ("a)", r"unexpected \): a\)"),
     ("[a", r"missing \]: \[a"), ("*a", r"no argument for repetition operator: \*"),
     ("a{3,2}", r"invalid repetition size: \{3,2\}"), ("a{1001}", "at most 1000"),
     (r"(a)\1", r"there are no references"), ("(?=a)", "cannot look ahead"),
     ("(?<=a)b", "cannot look"), ("a\\", "trailing"), ("[z-a]", "range: z-a"),
     ("(" * 1000, "missing"), ("(((a{100}){100}){100})", "multiplied where groups are nested"),
     (r"\xzz", "escape sequence"), (r"\q", "escape sequence"), ("a{,2}b", r"write \{0,2\}"),
     ("a{999}", "too large"), (r"(\pL\pN\pZ){50}", "too large")],
)  # fmt: skip
def test_what_is_refused_says_why(expression: str, why: str) -> None:
    with pytest.raises(InvalidArgument, match="expression is") as raised:
        Expression(expression)
    assert re.search(why, raised.value.message), raised.value.message
    assert len(raised.value.message) < 200


def test_none_takes_long_to_prepare() -> None:
    letters = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    began = time.thread_time()
    for expression in ("[a-z]{1,200}@[a-z]{1,200}$", "(a|b)*a(a|b){8}", "(ab|cd|ef){100}"):
        Expression(expression)
    for expression in ("".join(f"[^{one}]*" for one in letters) * 3, r"[\pL\pN]" * 120):
        with pytest.raises(InvalidArgument, match="too large"):
            Expression(expression)
    assert time.thread_time() - began < 1


def test_without_re2_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(MissingDependency, match=r"pip install 'liftlog\[search\]'"):
        Expression("a")
