"""Fields, CSV and templates: objects in the shape that the command line asks for."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.options import output_format, output_option
from liftlog.cli.lib.output import object_array, write_object, write_objects
from liftlog.cli.lib.shapes import csv_text, parse_fields, parse_path, parse_template, text_of
from liftlog.cli.root import Root
from liftlog.errors import InvalidArgument

ORDER = {
    "offset": 7,
    "value": '{"customer": 17, "items": [{"sku": "a"}, {"sku": "b"}]}',
    "headers": {"trace-id": "t9", "Tag": ["x", "y"]},
    "key": None,
    "paused": False,
}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("offset", 7),
        (".offset", 7),
        ("value.customer", 17),
        ("value.items[1].sku", "b"),
        ("value.items[-1].sku", "b"),
        (".value.items[2].sku", None),
        ("headers.trace-id", "t9"),
        ("headers.Tag[0]", "x"),
        ("key.x", None),
        ("nothing", None),
        ("offset.x", None),
        ("headers[0]", None),
    ],
)
def test_paths(path: str, value: Any) -> None:
    assert parse_path(path).find(ORDER) == value


@pytest.mark.parametrize("path", ["", ".", "a..b", "a[", "a[x]", "a b", "a | length", "[]", "{a}"])
def test_what_is_not_a_path(path: str) -> None:
    with pytest.raises(InvalidArgument, match="not the path"):
        parse_path(path)
    with pytest.raises(InvalidArgument, match="not the path"):
        parse_fields(f"a,{path}")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_a_path_is_looked_up_in_anything(value: Any) -> None:
    parse_path("a[0].b").find(value)
    assert isinstance(text_of(value), str)


def test_templates() -> None:
    assert parse_template("{{.offset}}\\t{{ value.customer }}: {{headers}}{}")(ORDER) == (
        '7\t17: {"trace-id":"t9","Tag":["x","y"]}{}'
    )
    assert parse_template("<{{key}}{{nothing}}>\\\\n")(ORDER) == "<>\\n"
    assert parse_template("{{paused}}")(ORDER) == "false"


@pytest.mark.parametrize("text", ["", "no field", "{{a b}}", "{{}}", "{name}"])
def test_what_is_not_a_template(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_template(text)


@given(st.lists(st.lists(st.text(st.characters(exclude_characters="\r")), min_size=2), min_size=1))
def test_csv_can_be_read_again(found: list[list[str]]) -> None:
    assert list(csv.reader(io.StringIO(csv_text(found)))) == found


def printed(arguments: list[str], objects: list[Any], *, one: bool = False) -> str:
    """What a command prints that has these objects."""

    @output_option
    def body() -> None:
        style = output_format()
        if style == "table":
            click.echo("table")
        elif one:
            write_object(objects[0], style)
        else:
            write_objects(objects, style)

    root = Root(name="liftlog")
    root.add_command(click.command("act")(body))
    result = CliRunner().invoke(root, ["act", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("one", [False, True])
@pytest.mark.parametrize("style", ["json", "jsonl", "yaml"])
def test_fields_of_documents(style: str, one: bool) -> None:
    out = printed(["-o", style, "--fields", "offset,value.customer"], [ORDER], one=one)
    found = yaml.safe_load(out)  # JSON is YAML
    wanted = {"offset": 7, "value.customer": 17}
    assert found == (wanted if one or style == "jsonl" else [wanted])


@pytest.mark.parametrize("one", [False, True])
def test_fields_of_tables(one: bool) -> None:
    for style in ([], ["-o", "wide"]):
        out = printed([*style, "--fields", "offset,value.customer,key"], [ORDER], one=one)
        assert [line.split() for line in out.splitlines()] == [
            ["OFFSET", "VALUE.CUSTOMER", "KEY"],
            ["7", "17"],
        ]
    assert printed([], [ORDER], one=one) == "table\n"


def test_csv_has_the_fields_of_all_objects() -> None:
    out = printed(["-o", "csv"], [{"a": 1}, {"a": 2, "b": "x,\ny"}])
    assert list(csv.reader(io.StringIO(out))) == [["a", "b"], ["1", ""], ["2", "x,\ny"]]
    assert printed(["-o", "csv", "--fields", "b"], [{"a": 1}]) == 'b\n""\n'
    assert printed(["-o", "csv"], []) == ""
    assert printed(["-o", "csv", "--fields", "a,b"], []) == "a,b\n"


def test_a_template_makes_a_line_of_each_object() -> None:
    assert printed(["--template", "{{.a}}!"], [{"a": 1}, {"a": None}]) == "1!\n!\n"
    assert printed(["--template", "{{.a}}!", "-o", "json"], [{"a": 1}]) == "1!\n"


def test_pieces_have_one_heading(capsys: pytest.CaptureFixture[str]) -> None:
    array = object_array("csv", ("a", "b"))
    assert array is not None
    with array:
        for piece in ([], [{"a": 1}], [], [{"a": 2, "b": 3, "c": 4}]):
            array.add(piece)
    assert capsys.readouterr().out == "a,b\n1,\n2,3\n"


@pytest.mark.parametrize("given", [["--fields", "a b"], ["--template", "x"]])
def test_a_wrong_shape_is_a_wrong_command_line(given: list[str]) -> None:
    @output_option
    def body() -> None:
        write_object({}, output_format())

    root = Root(name="liftlog")
    root.add_command(click.command("act")(body))
    result = CliRunner().invoke(root, ["act", *given])
    assert result.exit_code == ExitCode.USAGE
    assert result.stdout == ""
    as_object = CliRunner().invoke(root, ["act", *given, "-o", "json"])
    assert json.loads(as_object.stderr)["error"]["exit_code"] == ExitCode.USAGE
