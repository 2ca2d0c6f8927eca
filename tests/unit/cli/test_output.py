"""Tables, JSON and JSON lines."""

import base64
import io
import json
import re
from contextlib import redirect_stdout
from datetime import UTC, datetime
from typing import Any

import click
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from liftlog.cli import stream_words
from liftlog.cli.consuming import offsets
from liftlog.cli.lib import output, ranges
from liftlog.cli.lib.output import (
    JsonArray,
    object_array,
    print_pairs,
    print_table,
    to_json,
    to_yaml,
    write_object,
    write_objects,
)
from liftlog.cli.lib.record_lines import RecordLines, record_writer
from liftlog.client import Checkpoint, StreamInfo
from liftlog.records.decode import Record
from liftlog.records.json_form import record_object

BLOCK = b"NATS/1.0\r\nTrace: 1\r\nTag: a\r\ntag: b\r\nTag: c\r\n\r\n"


def record(offset: int, value: bytes | None, **fields: object) -> Record:
    whole = {
        "timestamp_ns": 1_767_225_600_000_000_000,
        "subject": "orders.new",
        "key": None,
        "raw_headers": b"",
    } | fields
    return Record(offset=offset, value=value, **whole)  # type: ignore[arg-type]


def test_a_piped_table_is_never_cut_or_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 500
    print_table(("NAME", "COUNT"), [("a", "1"), (long, "22")], right=(1,))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0].split() == ["NAME", "COUNT"]
    assert lines[1].split() == ["a", "1"]
    assert lines[2].split() == [long, "22"]
    assert lines[1].endswith(" 1")
    assert len(lines[1]) == len(lines[2])  # aligned to the right


def test_brackets_in_a_table_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("A",), [("[red]x[/red] :smile: [1/2]",)])
    assert "[red]x[/red] :smile: [1/2]" in capsys.readouterr().out


def test_pairs_align_and_continue_below(capsys: pytest.CaptureFixture[str]) -> None:
    print_pairs([("a", "1"), ("long", "2\n3")])
    assert capsys.readouterr().out == "a     1\nlong  2\n      3\n"


def test_objects(capsys: pytest.CaptureFixture[str]) -> None:
    write_objects([{"a": 1}, {"a": "é"}], "jsonl")
    assert capsys.readouterr().out == '{"a":1}\n{"a":"é"}\n'
    write_objects([{"a": 1}], "json")
    assert json.loads(capsys.readouterr().out) == [{"a": 1}]
    write_object({"a": 1}, "json")
    assert json.loads(capsys.readouterr().out) == {"a": 1}


def test_yaml_says_what_json_says(capsys: pytest.CaptureFixture[str]) -> None:
    class Word(str):
        __slots__ = ()

    awkward = {"no": "no", "n": None, "é": "a\n: b", "list": [1, {"x": []}], "w": Word("012")}
    write_object(awkward, "yaml")
    assert yaml.safe_load(capsys.readouterr().out) == awkward
    write_objects([awkward, {"a": "x" * 500}], "yaml")
    assert yaml.safe_load(capsys.readouterr().out) == [awkward, {"a": "x" * 500}]
    write_objects([], "yaml")
    assert yaml.safe_load(capsys.readouterr().out) == []


@pytest.mark.parametrize("style", ["json", "yaml"])
@pytest.mark.parametrize("pieces", [[], [[]], [[1], [], [2, 3]]])
def test_pieces_make_one_document(
    style: str, pieces: list[list[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    array = object_array(style)
    assert array is not None
    with array:
        for piece in pieces:
            array.add([{"n": one} for one in piece])
    found = yaml.safe_load(capsys.readouterr().out)  # JSON is YAML
    assert found == [{"n": one} for piece in pieces for one in piece]


def test_an_interrupted_array_is_closed(capsys: pytest.CaptureFixture[str]) -> None:
    array = JsonArray()
    with pytest.raises(KeyboardInterrupt), array:
        array.add([1, 2])
        array.add([])
        array.add([3])
        raise KeyboardInterrupt
    assert json.loads(capsys.readouterr().out) == [1, 2, 3]
    with JsonArray():
        pass
    assert json.loads(capsys.readouterr().out) == []


def test_a_record_as_json() -> None:
    found = record_object(record(7, b"h\xc3\xa9", key=b"k", raw_headers=BLOCK))
    assert found == {
        "offset": 7,
        "timestamp": "2026-01-01T00:00:00.000000Z",
        "timestamp_ns": 1_767_225_600_000_000_000,
        "subject": "orders.new",
        "key": "k",
        "value": "hé",
        "headers": {"Trace": "1", "Tag": ["a", "c"], "tag": "b"},
        "headers_base64": base64.b64encode(BLOCK).decode(),  # `tag` was between the two
    }


def test_bytes_that_are_not_text_are_marked() -> None:
    raw = b"\xff\x00\xfe"
    found = record_object(record(1, raw, key=b"\xc3"))
    assert found["value_encoding"] == found["key_encoding"] == "base64"
    assert base64.b64decode(found["value"]) == raw
    assert base64.b64decode(found["key"]) == b"\xc3"


def test_a_tombstone_and_an_empty_value_differ() -> None:
    assert record_object(record(1, None, key=b"k"))["value"] is None
    assert record_object(record(1, b""))["value"] == ""


@pytest.mark.parametrize("style", ["json", "jsonl", "yaml"])
def test_records_for_programs(style: str, capsys: pytest.CaptureFixture[str]) -> None:
    with record_writer(style) as write:
        write([record(1, b"a"), record(2, b"b")])
        write([record(3, b"c")])
    out = capsys.readouterr().out
    one_document = style != "jsonl"
    found = yaml.safe_load(out) if one_document else list(map(json.loads, out.splitlines()))
    assert [one["value"] for one in found] == ["a", "b", "c"]


def test_wide_lines_leave_subjects_and_keys_whole(capsys: pytest.CaptureFixture[str]) -> None:
    long = record(1, b"a", subject="s" * 90, key=b"k" * 90)
    for wide in (False, True):
        with record_writer("table", wide=wide) as write:
            write([long])
        out = capsys.readouterr().out
        assert ("s" * 90 in out, "k" * 90 in out) == (wide, wide)


def test_records_as_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with record_writer("table") as write:
        write([record(1, b"a" * 300), record(2, None, key=b"customer")])
        write([record(3, b"x\ny", raw_headers=BLOCK)])
        write([])
    heading, first, second, again, third = capsys.readouterr().out.splitlines()
    assert heading.split() == ["OFFSET", "TIME", "SUBJECT", "KEY", "VALUE"]
    assert first.endswith("a" * 300)
    assert second.split()[-2:] == ["customer", "<tombstone>"]
    assert first.index("aaa") == second.index("<tombstone>")
    assert heading.index("KEY") == second.index("customer")
    # The first record with headers brings their column, and a heading that has it.
    assert again.split() == ["OFFSET", "TIME", "SUBJECT", "KEY", "HEADERS", "VALUE"]
    assert third.endswith("Trace: 1, Tag: a, tag: b, Tag: c  x\\ny")
    assert again.index("HEADERS") == third.index("Trace: 1")
    assert again.index("VALUE") == third.index("x\\ny")


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_a_narrow_terminal_shows_some_of_each_value(width: int) -> None:
    """Headers go first."""
    found = record(1, b"v" * 300, subject="orders.eu.new", key=b"order-17", raw_headers=BLOCK)
    table = RecordLines(width)
    heading, line = table.lines([found])
    assert len(heading) <= len(line) == width
    assert line.count("v") >= 9
    assert ("HEADERS" in heading) == ("Trace: 1" in line) == (width >= 100)
    assert table.lines([found]) == [line]


def test_no_colour_means_no_bold_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    pattern = re.compile("v")
    with_colour = RecordLines(80, found=pattern).lines([record(1, b"v")])
    monkeypatch.setenv("NO_COLOR", "1")
    without = RecordLines(80, found=pattern).lines([record(1, b"v")])
    assert all("\x1b[" in line for line in with_colour)
    assert not any("\x1b[" in line for line in without)


HOSTILE = "a\x1b[2J\x7f\x9b1m\u202eb\u2066c\u061c\u200f\u2028\x85é"


@pytest.mark.parametrize("style", ["json", "jsonl", "yaml"])
@pytest.mark.parametrize("write", [write_object, lambda one, style: write_objects([one], style)])
def test_nothing_that_a_terminal_acts_on_is_in_a_document(
    style: str, write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    value = {HOSTILE: HOSTILE, "list": [HOSTILE, "plain é"], "headers": {"x": [HOSTILE]}}
    write(value, style)
    out = capsys.readouterr().out
    assert all(line.isprintable() for line in out.split("\n"))
    assert "plain é" in out
    found = yaml.safe_load(out) if style == "yaml" else json.loads(out)
    assert found in (value, [value])


@given(st.text())
def test_any_text_survives_its_document(text: str) -> None:
    assert json.loads(to_json([text])) == [text]
    assert yaml.safe_load(to_yaml([text])) == [text]
    assert all(line.isprintable() for line in to_json(text).split("\n") if text.isprintable())


@pytest.mark.parametrize("style", ["table", "json", "jsonl", "yaml"])
def test_nothing_of_a_record_moves_the_cursor(
    style: str, capsys: pytest.CaptureFixture[str]
) -> None:
    block = f"NATS/1.0\r\nx{HOSTILE}: {HOSTILE}\r\n\r\n".encode()
    raw = HOSTILE.encode()
    with record_writer(style) as write:
        write([record(1, raw, key=raw, raw_headers=block)])
    assert all(line.isprintable() for line in capsys.readouterr().out.split("\n"))


@pytest.mark.parametrize(("width", "lines"), [(None, 1), (80, 2), (40, 5), (8, 10)])
def test_long_values_are_wrapped_beside_their_names(
    width: int | None, lines: int, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr(output, "terminal_width", lambda: width)
    print_pairs([("features", " ".join(["group-seek"] * 10)), ("x", "y")])
    *found, last = capsys.readouterr().out.splitlines()
    assert len(found) == lines
    assert last == "x         y"
    assert [line[:10] for line in found[1:]] == [" " * 10] * (lines - 1)
    assert all(line.endswith("group-seek") for line in found)


def test_nothing_in_a_table_moves_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["NAME"], [[HOSTILE]])
    print_pairs([("name", HOSTILE)])
    assert all(line.isprintable() for line in capsys.readouterr().out.split("\n"))


def test_checkpoints_are_listed_with_their_owners_where_there_are_any() -> None:
    anonymous = Checkpoint("billing", "orders", 7)
    owned = Checkpoint("shop", "orders", 8, owner="ops")
    headings, rows = offsets.table_of([anonymous, owned], wide=False)
    assert [row[headings.index("OWNER")] for row in rows] == ["", "ops"]
    assert "OWNER" not in offsets.table_of([anonymous], wide=False)[0]
    assert "OWNER" in offsets.table_of([anonymous], wide=True)[0]
    assert ("owner", "ops") in offsets._facts(owned)


@pytest.mark.parametrize(("width", "whole"), [(60, False), (80, True), (None, True)])
def test_a_narrow_terminal_gets_fewer_columns_of_streams(
    width: int | None, whole: bool, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr(stream_words, "terminal_width", lambda: width)
    with click.Context(click.Command("ls")):
        stream_words.print_streams([StreamInfo("orders", "orders.>", state="attached")])
    heading = capsys.readouterr().out.splitlines()[0].split()
    assert heading[:4] == ["NAME", "SUBJECT", "STATE", "RECORDS"]
    assert ("SEGMENTS" in heading) is whole
    assert "SIZE" in heading


def test_headers_that_another_column_shows_are_left_out() -> None:
    block = b"NATS/1.0\r\nLiftlog-Key: k\r\nliftlog-tombstone: true\r\n\r\n"
    only = record(1, None, key=b"k", raw_headers=block)
    heading, _ = RecordLines(None).lines([only])
    assert "HEADERS" not in heading


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (30, {"SUBJECT"}),
        (40, {"SUBJECT"}),
        (60, {"SUBJECT", "KEY"}),
        (80, {"TIME", "SUBJECT", "KEY"}),
        (109, {"TIME", "SUBJECT", "KEY", "HEADERS"}),
    ],
)
def test_a_narrow_terminal_shows_something_of_the_value(width: int, shown: set[str]) -> None:
    long = record(1, b"value", subject="s" * 90, key=b"k" * 90, raw_headers=BLOCK)
    heading, line = RecordLines(width).lines([long])
    assert len(heading) <= width
    assert line.endswith("value")
    assert set(heading.split()) == {"OFFSET", "VALUE"} | shown
    assert ("01-01 00:00:00" in line) is ("TIME" in shown)


def test_tables_separate_thousands_and_positions_may() -> None:
    table = RecordLines(80)
    heading, line, longer = table.lines([record(7, b"v"), record(12_345_678, b"v")])
    assert longer.startswith("12,345,678  ")
    assert line.index("v") == longer.index("v") == heading.index("VALUE")
    shown = stream_words.row_of(StreamInfo("a", "a", log_start_offset=1234, high_watermark=5678))
    assert shown[4:6] == ("1,234", "5,678")
    now = datetime.now(UTC)
    assert ranges.parse_range("1,234:5,678", now) == ranges.Range(1234, 5678)
    assert ranges.parse_position("-1,000", now) == ranges.parse_position("-1000", now)
    assert ranges.OffsetType()("12,345") == 12_345
    for wrong in ("1,23", "1234,567", ",123", "1,,234"):
        with pytest.raises(ranges.NotUnderstood):
            ranges.parse_position(wrong, now)
        with pytest.raises(click.BadParameter):
            ranges.OffsetType()(wrong)


@pytest.mark.parametrize(
    ("width", "gone"),
    [(120, set()), (80, set()), (79, {"SEGMENTS"}), (68, {"SEGMENTS", "START"}),
     (40, {"SEGMENTS", "START", "END", "ACKS"})],
)  # fmt: skip
def test_a_table_of_streams_fits_its_terminal(
    width: int, gone: set[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stream_words, "terminal_width", lambda: width)
    info = StreamInfo(name="payments", subject="payments.>", state="attached", log_end_offset=1,
                      high_watermark=3002, log_start_offset=1, record_count=3001, size_bytes=297000,
                      segment_count=6, settings={"acks": "on", "durability": "fsync"})  # fmt: skip
    with click.Context(click.Command("ls")):
        stream_words.print_streams([info])
        heading, line = capsys.readouterr().out.splitlines()
        monkeypatch.setattr(stream_words, "terminal_width", lambda: 1000)
        stream_words.print_streams([info])
    whole, _ = capsys.readouterr().out.splitlines()
    assert {*whole.split()} - {*heading.split()} == gone
    if width > 40:  # else there is nothing more to leave out
        assert max(len(heading), len(line)) <= width


_CELLS = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=12)


@given(data=st.data(), columns=st.integers(1, 4), count=st.integers(0, 4))
def test_a_simple_table_looks_as_rich_prints_it(
    data: st.DataObject, columns: int, count: int
) -> None:
    headings = [f"{name}{number}" for number, name in enumerate(["NAME", "STATE", "N", ""])]
    headings = headings[:columns]
    rows = [[data.draw(_CELLS) for _ in headings] for _ in range(count)]
    right = data.draw(st.sets(st.integers(0, columns - 1)))

    def printed() -> str:
        with redirect_stdout(io.StringIO()) as captured:
            print_table(headings, rows, right=right)
        return captured.getvalue()

    ours = printed()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "is_simple_table", lambda lines: False)
        assert ours == printed()


@pytest.mark.parametrize("cell", ["ü", "two\nlines", "FORCED"])
def test_other_tables_are_left_to_rich(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "")
    assert output.is_simple_table([["NAME"], ["plain"]])
    if cell == "FORCED":
        monkeypatch.setenv("FORCE_COLOR", "1")
    assert not output.is_simple_table([["NAME"], [cell]])
