import pytest

from acl import is_literal, is_subset, is_valid_pattern, matches, overlaps


@pytest.mark.parametrize(
    "pattern", ["a", "a.b", "*", ">", "a.*.b", "a.>", "*.*.>", "$SYS.>", "ä.b", "a-b_c"]
)
def test_valid_patterns(pattern: str) -> None:
    assert is_valid_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        ".",
        "a.",
        ".a",
        "a..b",
        "a b",
        " a",
        "a\t",
        "a\r\nb",
        "a\0",
        "a\x0b",
        "a\x7f",
        "a\u2028",
        "\ud800",
        "a*",
        "*a",
        "a.b>",
        ">.a",
        "a.>.b",
        ">>",
        "**",
        "a" * 1025,
    ],
)
def test_invalid_patterns(pattern: str) -> None:
    assert not is_valid_pattern(pattern)
    assert not is_literal(pattern)


def test_literals() -> None:
    assert is_literal("orders.eu.1")
    assert not is_literal("orders.*")
    assert not is_literal("orders.>")


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a.b", "a", False),
        ("a", "a.b", False),
        ("*", "a", True),
        ("*", "a.b", False),
        ("a.*", "a", False),
        ("a.*.c", "a.b.c", True),
        ("a.*.c", "a.b.d", False),
        (">", "a", True),
        (">", "a.b.c", True),
        ("a.>", "a", False),
        ("a.>", "a.b", True),
        ("a.>", "a.b.c", True),
        ("*.>", "a", False),
        ("A", "a", False),
        (">", "a..b", False),
        ("*", "", False),
        ("orders.*", "orders.a*", True),
    ],
)
def test_matches(pattern: str, subject: str, expected: bool) -> None:
    assert matches(pattern, subject) is expected


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("orders.>", "orders.eu.*", True),
        ("orders.>", "orders", False),
        ("*.a", "b.*", True),
        ("*.a", "b.c", False),
        (">", "_INBOX.>", True),
        ("*", "_INBOX.>", False),
        ("*.>", "_INBOX.>", True),
    ],
)
def test_overlaps(first: str, second: str, expected: bool) -> None:
    assert overlaps(first, second) is expected
    assert overlaps(second, first) is expected


@pytest.mark.parametrize(
    ("inner", "outer", "expected"),
    [
        ("orders.eu.>", "orders.>", True),
        ("orders.>", "orders.eu.>", False),
        ("orders.*", "orders.>", True),
        ("orders.>", "orders.*", False),
        ("a", "a", True),
        (">", ">", True),
        ("*.>", ">", True),
        (">", "*.>", False),
        ("*", "a", False),
        ("a.*", "*.*", True),
        ("a.>", "a", False),
        ("a", "a.>", False),
    ],
)
def test_is_subset(inner: str, outer: str, expected: bool) -> None:
    assert is_subset(inner, outer) is expected
