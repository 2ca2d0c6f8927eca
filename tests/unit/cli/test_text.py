"""What strangers sent, made fit for a terminal."""

import pytest

from liftlog.cli.lib.text import plural, printable, shorten, show_bytes, show_size, show_time


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünïcode 漢", "plain ünïcode 漢"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("a\r\nb\tc", "a\\r\\nb\\tc"),
        ("\x9b31m", "\\x9b31m"),
        ("abc\u202edef\u2066", "abc\\u202edef\\u2066"),
        ("\udcff", "\\udcff"),
    ],
)
def test_nothing_that_a_terminal_acts_on_gets_through(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_newlines_can_stay() -> None:
    assert printable("a\n\x1bb", keep_newlines=True) == "a\n\\x1bb"


def test_bytes() -> None:
    assert show_bytes(b"h\xc3\xa9\n") == "hé\\n"
    assert show_bytes(b"") == ""
    assert show_bytes(None, null="-") == "-"
    assert show_bytes(b"\xff\x00") == "<2 bytes ff00>"
    assert show_bytes(b"\xff" * 17) == "<17 bytes " + "ff" * 16 + "...>"


def test_times_and_sizes() -> None:
    assert show_time(0) == "1970-01-01T00:00:00.000000Z"
    assert show_time(1_767_225_600_123_456_789) == "2026-01-01T00:00:00.123456Z"
    assert show_time(2**63 - 1).startswith("2262-")
    assert [show_size(size) for size in (0, 1023, 1024, 1536, 2**31, 2**52)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 KiB",
        "2.0 GiB",
        "4096.0 TiB",
    ]


def test_short_and_many() -> None:
    assert shorten("abcdef", None) == "abcdef"
    assert shorten("abcdef", 6) == "abcdef"
    assert shorten("abcdef", 4) == "abc…"
    assert plural(1, "batch", "batches") == "1 batch"
    assert plural(1234, "record") == "1,234 records"
