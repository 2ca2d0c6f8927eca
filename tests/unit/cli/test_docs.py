"""`liftlog docs` shows the pages, and whatever the commands and errors name is one of them."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.repository import REPOSITORY

from liftlog.cli import docs
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.problems import Problem
from liftlog.cli.root import cli


def test_a_page_by_its_name_or_a_part_of_it() -> None:
    text = (REPOSITORY / "docs/reference/settings.md").read_text()
    for asked in ("settings", "reference/settings", "docs/reference/settings.md"):
        assert CliRunner().invoke(cli, ["docs", asked]).stdout == text


def test_what_is_no_page_or_several() -> None:
    with pytest.raises(Problem, match="several pages") as several:
        docs.find_page("groups")
    assert several.value.exit_code is ExitCode.USAGE
    with pytest.raises(Problem) as none:
        docs.find_page("setings")
    assert none.value.exit_code is ExitCode.NOT_FOUND
    assert "'settings'" in none.value.hint
    with pytest.raises(Problem):
        docs.find_page("../README")


def test_all_pages_have_a_title() -> None:
    found = json.loads(CliRunner().invoke(cli, ["docs", "-o", "json"]).stdout)
    assert {"name": "how-to/acks", "title": docs.find_page("acks").title} in found
    assert len(found) > 40
    assert all(row["title"] for row in found)


def test_a_folder_of_another_distribution_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docs/reference").mkdir(parents=True)
    monkeypatch.setattr(docs.liftlog, "__file__", str(tmp_path / "liftlog/__init__.py"))
    with pytest.raises(Problem, match="no documentation"):
        docs.all_pages()


def shown_texts() -> Iterator[str]:
    """Texts in the code that a user can see, of modules that name a page: all but docstrings,
    except those of the commands and the errors, which are their help."""
    for package in ("liftlog", "envelope", "compaction", "acl"):
        for path in sorted((REPOSITORY / package).rglob("*.py")):
            source = path.read_text()
            if not re.search("docs|README", source):
                continue
            tree = ast.parse(source)
            is_help = path.parent.name == "cli" or path.name == "errors.py"
            hidden = set() if is_help else {id(one) for one in docstrings(tree)}
            hidden |= {id(one) for one in docstrings(tree, of=(ast.Module,))}
            for node in ast.walk(tree):
                if (
                    isinstance(node, ast.Constant)
                    and isinstance(node.value, str)
                    and id(node) not in hidden
                ):
                    yield node.value


def docstrings(
    tree: ast.Module,
    of: tuple[type[ast.AST], ...] = (
        ast.Module,
        ast.ClassDef,
        ast.FunctionDef,
        ast.AsyncFunctionDef,
    ),
) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        for one in getattr(node, "body", []) if isinstance(node, of) else []:
            if isinstance(one, ast.Expr):  # also what stands behind a constant
                yield one.value


def test_hints_name_what_a_wheel_has() -> None:
    named = set()
    for text in shown_texts():
        assert not re.search(r"\bdocs/[\w/-]+\.md|\bREADME", text), text
        named |= set(re.findall(r"liftlog docs ([\w/-]+)", text))
    assert len(named) >= 10
    for name in named:
        docs.find_page(name)


def test_the_wheel_carries_these_pages() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    carried = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    parts = {page.name.split("/")[0] for page in docs.all_pages()}
    assert carried == {f"docs/{part}": f"liftlog/docs/{part}" for part in parts}
