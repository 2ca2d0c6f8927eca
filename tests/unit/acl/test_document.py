import tracemalloc

import pytest

from acl.document import MAX_CHARACTERS, read_document


def problem(text: str) -> str:
    found = read_document(text).findings
    assert len(found) == 1
    return found[0][2]


def test_values_and_lines() -> None:
    document = read_document("a:\n  b: [1, two]\n  c: null\n")
    assert document.value == {"a": {"b": [1, "two"], "c": None}}
    assert document.findings == []
    assert document.lines["a", "b"] == 2
    assert document.lines["a", "b", 1] == 2
    assert document.lines["a", "c"] == 3


def test_an_empty_text() -> None:
    assert read_document("").value is None
    assert read_document("# nothing\n").findings == []


def test_keys_are_the_text_in_the_file() -> None:
    assert read_document("{on: 1, 7: 2, null: 3}").value == {"on": 1, "7": 2, "null": 3}


def test_two_equal_keys() -> None:
    document = read_document("a: 1\nb: {c: 1, 'c': 2}\na: 3")
    assert [(path, line) for path, line, _ in document.findings] == [(("b", "c"), 2), (("a",), 3)]


def test_aliases_and_merges_work() -> None:
    document = read_document("x: &x {a: 1, b: 2}\ny: {b: 3, <<: *x}\nz: {<<: [*x, {a: 9, c: 4}]}")
    assert document.value["y"] == {"a": 1, "b": 3}
    assert document.value["z"] == {"a": 1, "b": 2, "c": 4}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [", "not valid YAML"),
        ("a: &a [*a]", "nested deeper"),
        ("a: &a {b: *a}", "nested deeper"),
        ("a: &a {<<: *a}", "nested deeper"),
        ("[" * 100_000, "nest"),  # PyYAML counts as well, since 6.0.4
        ("{a: " * 100_000, "nested deeper"),
        ("? [a]\n: 1", "a key must be plain text"),
        ("a: {<<: 5}", "'<<' must name a mapping"),
        ("a: !!python/object/apply:os.getcwd []\nb: !!python/name:os.getcwd x", "constructor"),
        ("a: !custom x", "constructor"),
        ("a: 2026-13-01", "not valid YAML: not a valid timestamp"),
        ("a: !!timestamp soon", "not valid YAML: not a valid timestamp"),
        ("a: !!bool maybe", "not valid YAML: not a valid bool"),
        ('a: !!int ""', "not valid YAML: not a valid int"),
        ('a: !!float ""', "not valid YAML: not a valid float"),
        ("a: 1\n---\na: 2", "another document"),
        ("\0", "not valid YAML"),
        ("\ud800", "not valid YAML"),
        ("a: 9" + "9" * 10_000, "not valid YAML"),
        ("x" * (MAX_CHARACTERS + 1), "longer than"),
        ("*unknown", "undefined alias"),
    ],
)
def test_hostile_text(text: str, expected: str) -> None:
    assert expected in problem(text)


def test_a_billion_laughs_cost_little() -> None:
    text = "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    for name, before in zip("bcdefghij", "abcdefghi", strict=True):
        text += f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    tracemalloc.start()
    try:
        assert "more than 200000 values" in problem(text)
        assert tracemalloc.get_traced_memory()[1] < 100 * 2**20
    finally:
        tracemalloc.stop()


def test_a_scalar_that_is_no_value_is_found_where_it_stands() -> None:
    document = read_document("a: 1\nb:\n  - !!bool maybe\n  - 2026-13-01\nc: 3\n")
    assert [(path, line) for path, line, _ in document.findings] == [(("b", 0), 3), (("b", 1), 4)]
    assert document.value == {"a": 1, "b": [None, None], "c": 3}


@pytest.mark.parametrize("text", ["password: hunter2: x\n", "password: !!int hunter2\n"])
def test_a_broken_line_is_not_quoted(text: str) -> None:
    found = read_document(text).findings
    assert found
    assert "hunter2" not in repr(found)
