"""Which values a condition finds, as a loop over them would."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftlog.errors import InvalidArgument
from liftlog.records.columns.column_set import BinaryColumn
from liftlog.server.web import conditions
from liftlog.server.web.conditions import Contains, parse_condition


def column(values: list[bytes | None]) -> BinaryColumn:
    """Its `ends` do not begin with 0, as those of a part."""
    ends = np.cumsum([3, *[len(value or b"") for value in values]]).astype(np.int32)
    data = np.frombuffer(b"xyz" + b"".join(value or b"" for value in values) + b"behind", np.uint8)
    return BinaryColumn(ends, data, np.array([value is not None for value in values], np.bool_))


def found(kind: str, text: str, values: list[bytes | None]) -> list[int]:
    return np.flatnonzero(parse_condition(kind, text)(column(values))).tolist()


@given(st.lists(st.binary(max_size=6) | st.text("aAb", max_size=5).map(str.encode), max_size=20),
       st.text("aAbB\0", min_size=1, max_size=3), st.integers(1, 20))  # fmt: skip
def test_a_text(values: list[bytes], text: str, step: int) -> None:
    """Never across two values, and none twice, whatever the steps in which they are looked at."""
    wanted = text.encode().lower()
    expected = [i for i, one in enumerate(values) if wanted in one.lower()]
    flags = Contains(text, step_bytes=step)(column(list(values)))
    assert np.flatnonzero(flags).tolist() == expected


def test_a_text_is_not_behind_the_column() -> None:
    assert found("text", "behind", [b"a", b""]) == []
    assert found("text", "xyz", [b"a", b""]) == []
    assert found("text", "GRÜN"[:2], ["grün".encode()]) == [0]


def test_a_text_is_found_as_json_escapes_it() -> None:
    """Python's own json module does so, and the page shows the letters."""
    values: list[bytes | None] = [
        json.dumps({"name": name}).encode() for name in ("Çelik", "Celik", '王 "x"', "🎉")
    ]
    values += [json.dumps({"name": "Çelik"}, ensure_ascii=False).encode()]
    assert found("text", "Çelik", values) == [0, 4]
    assert found("text", '"name": "王 \\"X', values) == [2]
    assert found("text", "🎉", values) == [3]
    assert found("text", "elik", values) == [0, 1, 4]


def test_an_expression() -> None:
    assert found("regex", "^b+$", [b"b", b"ab", b"", None, b"bb"]) == [0, 4]
    assert found("regex", "^$", [b"b", b"", None]) == [1], "a tombstone has no value"
    assert found("regex", "b", [b"ab"] * 100) == list(range(100))


DOCUMENT = {"id": 17, "name": "Ann",
            "of": {"a b": [1, {"sku": "x"}, {"sku": "y"}], "on": True},
            "rate": 1.5, "none": None, "text": "17", "big": 10**20,
            "when": "2026-01-31"}  # fmt: skip


@pytest.mark.parametrize(
    ("question", "is_there"),
    [("id", True), ("$.id", True), ("$.id = 17", True), ("id==17.0", True), ("id=18", False),
     ('id="17"', False), ("text=17", True), ('text="17"', True), ("id != 18", True),
     ("id != 17", False), ("absent != 17", False), ("id > 16", True), ("id >= 17", True),
     ("id < 17", False), ("id > 16.5", True), ("name = Ann", True), ('name="Ann"', True),
     ("name=ann", False), ("name > 5", False), ("when >= 2026-01-01", True),
     ("when < 2026-01-01", False), ('of["a b"][0] = 1', True), ('of["a b"][*].sku = y', True),
     ('of["a b"][*].sku = z', False), ('of["a b"][9]', False), ("of.on = true", True),
     ("of.on = 1", False), ("none = null", True), ("none", True), ("rate=1.50", True),
     ("big=100000000000000000000", True), ("of.on.more", False), ("id.x", False),
     ("name != 5", True)],
)  # fmt: skip
def test_a_field(question: str, is_there: bool) -> None:
    assert bool(found("json", question, [json.dumps(DOCUMENT).encode()])) == is_there


@pytest.mark.parametrize(
    ("question", "raw"),
    [("id=17", b'{"id": 1.7e1}'), ("name=Ann", rb'{"name": "\u0041nn"}'),
     ("id", rb'{"\u0069d": 1}'), ("id = 17", b'{"id": 170E-1}'), ('a="x/y"', rb'{"a": "x\/y"}'),
     ('a="q\\"q"', rb'{"a": "q\"q"}'),
     ("[1]=5", b"[4,5]"), ("[*]=5", b"[4,5]")],
)  # fmt: skip
def test_a_field_however_it_is_written(question: str, raw: bytes) -> None:
    assert found("json", question, [raw]) == [0]


def test_what_is_no_json_has_no_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    others: list[bytes | None] = [b"id", b"", None, b'{"id":', b"\xffid", b'"id"', b"[" * 10_000,
                                  b'{"id": 1}']  # fmt: skip
    assert found("json", "id", others) == [7]
    monkeypatch.setattr(conditions, "MAX_JSON_BYTES", 8)
    assert found("json", "id", others) == []


@pytest.mark.parametrize(
    "question", ["", " ", "= 5", "id =", "id 5", "id = {}", "id = [1]", "$", 'a["x', "a[x]", "a..b",
                 r'a["\q"]', "a < null", "a >= true"],
)  # fmt: skip
def test_a_field_that_cannot_be(question: str) -> None:
    with pytest.raises(InvalidArgument, match=r"expected a field|compare with"):
        parse_condition("json", question)


names = st.text("abc", min_size=1, max_size=2)
trees: Any = st.recursive(
    st.integers(-3, 30) | st.text("ab1", max_size=2) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)


@given(trees, names, names, st.integers(-3, 30))
def test_two_names_deep(tree: Any, first: str, second: str, wanted: int) -> None:
    value = tree.get(first) if isinstance(tree, dict) else None
    value = value.get(second) if isinstance(value, dict) else None
    is_same = (type(value) is int and value == wanted) or value == str(wanted)
    raw = json.dumps(tree).encode()
    assert bool(found("json", f"{first}.{second} = {wanted}", [raw])) == is_same
