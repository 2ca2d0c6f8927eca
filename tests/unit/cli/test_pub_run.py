"""The messages that `pub` makes of its command line and of standard input."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.pub_run import LineSplitter, Outgoing, Template
from liftlog.cli.root import cli


async def test_numbers_are_filled_in_only_when_there_are_several() -> None:
    template = Template("a", key=b"k{n}", message_id="i{n}")
    assert [one async for one in template.repeated(b"{n}", 1)] == [
        Outgoing(b"{n}", b"k{n}", "i{n}")
    ]
    assert [one async for one in template.repeated(b"m {n}", 3)] == [
        Outgoing(b"m %d" % n, b"k%d" % n, f"i{n}") for n in (1, 2, 3)
    ]
    assert [one async for one in template.repeated(None, 2)] == [
        Outgoing(None, b"k1", "i1"),
        Outgoing(None, b"k2", "i2"),
    ]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--key", " a"], "--envelope"),
        (["--key", "a\u2003"], "--envelope"),
        (["--key", "a\r\nb"], "--envelope"),
        (["--key", "a\udcff"], "--envelope"),
        (["--key", "k" * 70_000, "--envelope"], "does not fit an envelope"),
        (["--msg-id", "a "], "one line"),
        (["--msg-id", "a\nb"], "one line"),
        (["--msg-id", ""], "not empty"),
        (["--msg-id", "a\nb", "--envelope"], "one line"),
        (["-H", "A:b\nc"], "one line"),
        (["-H", "A: \u00a0b"], "one line"),
        (["-H", "A B:c"], "one line"),
    ],
)
def test_what_would_not_arrive_unchanged_is_refused(options: list[str], complaint: str) -> None:
    nowhere = ["--nats", "nats://127.0.0.1:1"]
    result = CliRunner().invoke(cli, ["pub", "orders.new", "x", *options, *nowhere])
    assert result.exit_code == ExitCode.USAGE, result.output
    assert complaint in result.stderr


@given(st.binary(), st.lists(st.integers(0, 40), max_size=8))
def test_lines_do_not_depend_on_how_they_come_in(data: bytes, cuts: list[int]) -> None:
    splitter = LineSplitter()
    found: list[bytes] = []
    position = 0
    for size in cuts:
        found += splitter.feed(data[position : position + size])
        position += size
    found += splitter.feed(data[position:])
    found += splitter.rest()
    whole = data.split(b"\n")
    if not whole[-1]:
        whole.pop()
    assert found == [line.removesuffix(b"\r") for line in whole]
