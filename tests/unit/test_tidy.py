"""Rules for the source as a whole that no linter knows."""

from __future__ import annotations

import re
from pathlib import Path

from tools.tidy import ALLOWED, FIGURES, MAX_FUNCTION_LINES, Sources

ROOT = Path(__file__).parents[2]
PRODUCT = ("liftlog", "envelope", "compaction", "acl", "tools")
_POSSESSIVE_GROUP = re.compile(r"\)(?:[*+?]|\{[\w%,]*\})\+")

_REACHES = """\
x = one.f._hidden
y = one.f(1)._HIDDEN
setattr(one, "_f", 1)
z = x._replace(a="one._hidden")  # one._hidden
self._own = cls._own = one.__dict__
"""


def test_no_expression_repeats_a_group_possessively() -> None:
    """Python 3.11.0 to 3.11.4 compile such a repeat wrongly (CPython gh-100061); `(?>(?:...)*)`
    says the same. A possessive repeat of one character or class is right everywhere."""
    assert _POSSESSIVE_GROUP.search(r"(?:(?!a)b){0,%d}+"), "the search finds what it is for"
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for package in PRODUCT
        for path in sorted((ROOT / package).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if "(?" in line and _POSSESSIVE_GROUP.search(line)
    ]
    assert found == []


def test_the_figures_of_the_source() -> None:
    """`make tidy ARGS=word` lists what is counted. One test, because parsing all takes seconds."""
    found = {figure: count() for figure, count in FIGURES.items()}
    beyond = {figure: some for figure, some in found.items() if len(some) > ALLOWED.get(figure, 0)}
    assert not beyond, beyond


def test_what_is_counted(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p/__init__.py").write_text('"""one  the first"""\n')
    long = "def f():\n" + "    pass\n" * MAX_FUNCTION_LINES
    many = "".join(f"    def m{n}(self):\n        self.a{n} = 1\n" for n in range(41))
    (tmp_path / "p/one.py").write_text(f'"""What it is."""\nimport p.two\n{long}class C:\n{many}')
    (tmp_path / "p/two.py").write_text(f"from p import one\n{_REACHES}" + "\n" * 496)
    sources = Sources("p", root=tmp_path)
    assert sources.long_functions() == ["p/one.py:3 f: 71 lines"]
    assert sources.large_classes() == ["p/one.py C: 41 attributes, 41 methods"]
    assert sources.long_modules() == ["p/two.py: 502 lines"]
    assert sources.unnamed_modules() == ["p/two.py"]
    assert sources.private_reaches() == [
        "p/two.py:2: x = one.f._hidden",
        "p/two.py:3: y = one.f(1)._HIDDEN",
    ]
    assert sources.private_patches() == ['p/two.py:4: setattr(one, "_f", 1)']
    assert sources.docstrings_that_begin_with("What") == ["p/one.py: What it is."]
    assert sources.circles() == ["p.one <-> p.two"]


def test_no_patch_is_for_what_is_not_there() -> None:
    """A patch that need not find its name changes nothing once that was moved, and the test goes on
    to pass."""
    silent = "raising=" + "False"
    paths = sorted((ROOT / "tests").rglob("*.py"))
    assert [str(one.relative_to(ROOT)) for one in paths if silent in one.read_text()] == []


def test_the_map_of_helpers_names_each_module() -> None:
    """And no other, below the heading of its folder."""
    support = ROOT / "tests/support"
    named = set()
    folder = ""
    for line in (support / "README.md").read_text().splitlines():
        if heading := re.match(r"## (?:`(\w+/)`|Here)", line):
            folder = heading[1] or ""
        elif row := re.match(r"\| `([\w/]+)` \|", line):
            named.add(folder + row[1])
    modules = {str(one.relative_to(support).with_suffix("")) for one in support.rglob("*.py")}
    assert named == {one for one in modules if not one.endswith("__init__")}
