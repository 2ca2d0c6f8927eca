"""Expressions find what Python's `re` finds, and none of them takes long."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftlog.errors import InvalidArgument
from liftlog.server.web.automaton import _FEW, Automaton, compile_expression


def found(automaton: Automaton, texts: list[bytes]) -> list[bool]:
    lengths = np.array([len(text) for text in texts], np.int64)
    starts = np.cumsum(lengths) - lengths
    data = np.frombuffer(b"".join(texts) or b"\0", np.uint8)
    return list(automaton.matches(data, starts, lengths).tolist())


EXPRESSIONS = ["a", "ab|cd", "^ab", "ab$", "^$", "", "a.c", "a*b+c?", "(?:ab){2,3}", "^(a|b)*c$",
               "[a-c]+x", "[^a-c\n]x", r"\d{2,}", r"^\w+\s\S+$", r"\D$", "(?i)AbC", "x{0}y",
               "^a{3}$", "ü", "[äö]b", "c.$", "(a|ab)(c|bcd)$", r"\x41\.", "[]a]", "[a-]b", "a+?b",
               "^^a$$", "(^a|b$)", "a{,2}b", "(?i)[^a-z]", "((a)(b)*)+c"]  # fmt: skip
TEXTS = ["", "a", "b", "ab", "abc", "ac", "aab", "ababab", "abcd", "cd", "c", "xy", "y", "aaa",
         "a\nc", "a c", "12", "1", "ABC", "aBcd", "über", "öb", "cä", "A.", "]", "-b", "foo bar",
         "z", "5x", "äx", "\n", "bcbc", "aabbc"]  # fmt: skip


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_as_python_finds_it(expression: str) -> None:
    known = re.compile(expression.replace("$", r"\Z"), re.ASCII)
    expected = [known.search(text) is not None for text in TEXTS]
    automaton = compile_expression(expression)
    raw = [text.encode() for text in TEXTS]
    assert found(automaton, raw) == expected
    for text, matches in zip(raw, expected, strict=True):
        assert not matches or automaton.needle in text.lower()
    # The same side by side with so many that numpy follows them.
    assert found(automaton, raw * _FEW) == expected * _FEW


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
    automaton = compile_expression(expression)
    expected = [known.search(text) is not None for text in texts]
    assert found(automaton, [text.encode() for text in texts]) == expected
    for text, matches in zip(texts, expected, strict=True):
        assert not matches or automaton.needle in text.encode().lower()


@pytest.mark.parametrize(
    ("expression", "needle"),
    [("abc", "abc"), ('"order": (7|9),', '"order": '), ("^error .*timeout", "timeout"),
     ("(?i)AbC", "abc"), ("ABc", "abc"), ("a|b", ""), ("(ab){2}c", "ababc"), ("(ab)+c", "ab"),
     ("a{0,2}bc", "bc"), ("[ab]c", "c"), ("n[e]{2}dle", "needle"), ("ab?c", "a"), ("ü", "ü"),
     ("x^yz", "xyz"), ("", ""), (".*", "")],
)  # fmt: skip
def test_what_every_match_contains(expression: str, needle: str) -> None:
    assert compile_expression(expression).needle == needle.encode()


@pytest.mark.parametrize("expression", ["(a+)+$", "(a|a)*b", "(a*)*c", "(.*)(.*)(.*)(.*)x$"])
def test_what_takes_hours_elsewhere(expression: str) -> None:
    automaton = compile_expression(expression)
    began = time.thread_time()
    assert found(automaton, [b"a" * 100_000 + b"!"]) == [False]
    assert time.thread_time() - began < 1


@pytest.mark.parametrize(
    "expression",
    ["(", ")", "a)", "[a", "*a", "a{2", "a{3,2}", "a{999}", r"\b", r"(a)\1", "(?=a)", "(?<n>a)",
     "a\\", "[z-a]", "[ä-ö]", "[^ä]", "(" * 100, "(((a{100}){100}){100})", "(a|b)*a(a|b){15}",
     r"\xzz", r"\q", "{"],
)  # fmt: skip
def test_what_is_refused_says_why(expression: str) -> None:
    with pytest.raises(InvalidArgument, match="expression is"):
        compile_expression(expression)


def test_none_takes_long_to_prepare() -> None:
    began = time.thread_time()
    for expression in ("[a-z]{1,200}@[a-z]{1,200}$", "(a|b)*a(a|b){8}", "(ab|cd|ef){100}"):
        compile_expression(expression)
    assert time.thread_time() - began < 3


def test_the_work_of_making_a_table_is_bounded() -> None:
    """Both have few states: their number alone does not bound the time."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    with pytest.raises(InvalidArgument, match="too large"):
        compile_expression("".join(f"[^{one}]*" for one in letters) * 8 + "!")
    many = compile_expression("".join(f"{one}*" for one in letters) * 5 + "!")
    assert found(many, [b"abc!", b"abc"]) == [True, False]
