"""`make tidy`: figures of the source, and their limits.

`tests/unit/test_tidy.py` asserts that no figure exceeds `ALLOWED`. Lower the limit when a figure
falls.
"""

from __future__ import annotations

import ast
import gc
import re
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_PRIVATE = re.compile(r"_[a-zA-Z]\w*")
_PATCHED = re.compile(r"(?:[\w.]+\.)?_[a-zA-Z]\w*")
_PATCHERS = frozenset({"setattr", "delattr", "getattr", "hasattr", "attrgetter"})
_DOCUMENTED = frozenset({"_replace", "_asdict", "_make", "_fields", "_field_defaults", "_exit"})
"""Public names of `typing.NamedTuple` and `os` that begin with an underscore."""
_MAY_BE_PRIVATE = re.compile(
    r"""(?<!\bself)(?<!\bcls)\._[a-zA-Z]    # an attribute, also in a string
    |   ["']_[a-zA-Z]                        # a string
    |   \bimport\b.*\b_[a-zA-Z]
    |   ^\s+_\w+(?:\ as\ \w+)?,?$           # an import of several lines
    """,
    re.VERBOSE,
)
_OWN = re.compile(r"\bself\.(\w+)")

ROOT = Path(__file__).parents[1]
PRODUCT = ("liftlog", "envelope", "compaction", "acl")

MAX_FUNCTION_LINES = 70
MAX_MODULE_LINES = 500
MAX_ATTRIBUTES = 24
MAX_METHODS = 40


@dataclass(frozen=True, slots=True)
class Module:
    path: Path
    root: Path
    source: str

    @property
    def shown(self) -> str:
        return str(self.path.relative_to(self.root))

    @property
    def name(self) -> str:
        parts = self.path.relative_to(self.root).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def lines(self) -> int:
        return self.source.count("\n")


@dataclass(frozen=True, slots=True)
class Findings:
    """The parts of one module's syntax tree that the figures count."""

    docstring: str
    long_functions: list[str]
    large_classes: list[str]
    docstrings: list[str]
    """All docstrings, including those of attributes, which follow an assignment."""
    imported: set[str]
    """Imported modules, and names in modules, including those imported for types or inside of
    functions."""
    private_reaches: list[str]
    private_patches: list[str]


class Sources:
    """The Python files of some folders."""

    def __init__(self, *folders: str, root: Path = ROOT) -> None:
        self.modules = [
            Module(path, root, path.read_text())
            for folder in folders
            for path in sorted((root / folder).rglob("*.py"))
        ]

    @cached_property
    def findings(self) -> list[tuple[Module, Findings]]:
        """The findings of each module. Each file is parsed once. The trees are not kept, because
        the trees of all files have a million nodes."""
        # A tree has no reference circles, and the collector would traverse it again and again.
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return [(module, findings_in(module)) for module in self.modules]
        finally:
            if was_enabled:
                gc.enable()

    def lines(self) -> int:
        return sum(module.lines for module in self.modules)

    def long_modules(self) -> list[str]:
        return [
            f"{module.shown}: {module.lines} lines"
            for module in self.modules
            if module.lines > MAX_MODULE_LINES
        ]

    def long_functions(self) -> list[str]:
        """Return the functions with too many lines. Docstrings count, decorators do not."""
        return [one for _, found in self.findings for one in found.long_functions]

    def large_classes(self) -> list[str]:
        """Return the classes with too many attributes, assigned by their methods, or too many
        methods."""
        return [one for _, found in self.findings for one in found.large_classes]

    def docstrings_that_begin_with(self, word: str) -> list[str]:
        return [
            f"{module.shown}: {text.splitlines()[0]}"
            for module, found in self.findings
            for text in found.docstrings
            if text.startswith(f"{word} ")
        ]

    def unnamed_modules(self) -> list[str]:
        """Return the modules that the docstring of their package does not name."""
        packages = {
            module.path.parent: found.docstring
            for module, found in self.findings
            if module.path.stem == "__init__"
        }
        return [
            module.shown
            for module in self.modules
            if module.path.stem not in ("__init__", "__main__")
            and "blocking" not in module.path.parts  # made from `aio`, which names them
            and not re.search(rf"\b{module.path.stem}\b", packages[module.path.parent])
        ]

    def circles(self) -> list[str]:
        """Return the modules that import each other, including imports for types or inside of
        functions."""
        names = {module.name for module in self.modules}
        arrows = {module.name: found.imported & names for module, found in self.findings}
        return [" <-> ".join(sorted(circle)) for circle in circles_of(arrows)]

    def private_reaches(self) -> list[str]:
        """Return the lines that use a private name of an object other than `self`."""
        return [one for _, found in self.findings for one in found.private_reaches]

    def private_patches(self) -> list[str]:
        """Return the lines that import a private name, or pass one as a string to `setattr` and
        similar functions."""
        return [one for _, found in self.findings for one in found.private_patches]


def findings_in(module: Module) -> Findings:
    tree = ast.parse(module.source)
    lines = module.source.splitlines()
    found = Findings(ast.get_docstring(tree) or "", [], [], [], set(), [], [])
    for node in statements_of(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                found.long_functions.append(
                    f"{module.shown}:{node.lineno} {node.name}: {length} lines"
                )
        elif isinstance(node, ast.ClassDef):
            attributes, methods = size_of_class(node, lines)
            if attributes > MAX_ATTRIBUTES or methods > MAX_METHODS:
                found.large_classes.append(
                    f"{module.shown} {node.name}: {attributes} attributes, {methods} methods"
                )
        elif isinstance(node, ast.Expr):
            if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                found.docstrings.append(node.value.value.strip())
        elif isinstance(node, ast.ImportFrom):
            found.imported.add(f"{node.module}")
            found.imported.update(f"{node.module}.{one.name}" for one in node.names)
        elif isinstance(node, ast.Import):
            found.imported.update(one.name for one in node.names)
    suspects = [one for one, line in enumerate(lines, 1) if may_be_private(line)]
    nodes = list(nodes_on(tree, suspects))
    for search, into in ((reaches_of, found.private_reaches), (patches_of, found.private_patches)):
        numbers = {number for number, node in nodes if search(node)}
        into.extend(f"{module.shown}:{one}: {lines[one - 1].strip()}" for one in sorted(numbers))
    return found


def may_be_private(line: str) -> bool:
    """Return True if `reaches_of` or `patches_of` may be True for a node on this line. At least one
    line of each such node gives True."""
    has_one = "._" in line or " _" in line or '"_' in line or "'_" in line  # the fast part
    return has_one and _MAY_BE_PRIVATE.search(line) is not None


def statements_of(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield all statements, at each depth. Most of a tree's nodes are expressions."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting += getattr(node, field, ())


def nodes_on(tree: ast.Module, lines: Sequence[int]) -> Iterator[tuple[int, ast.expr | ast.stmt]]:
    """Yield the statements and expressions on these lines, whose numbers ascend. Also yield the
    line that a figure names for the node."""
    waiting: list[ast.AST] = [tree] if lines else []
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.expr | ast.stmt):
            first, last = node.lineno, node.end_lineno or node.lineno
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                first = min([first, *(one.lineno for one in node.decorator_list)])
            place = bisect_left(lines, first)
            if place == len(lines) or lines[place] > last:
                continue
            # in a chain of several lines, the last line of an attribute has its name
            yield last if isinstance(node, ast.Attribute) else node.lineno, node
        waiting += ast.iter_child_nodes(node)


def reaches_of(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and _PRIVATE.fullmatch(node.attr) is not None
        and node.attr not in _DOCUMENTED
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    )


def patches_of(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return any(_PRIVATE.fullmatch(one.name) for one in node.names)
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name.lstrip("_") in _PATCHERS and any(
        isinstance(one, ast.Constant)
        and isinstance(one.value, str)
        and _PATCHED.fullmatch(one.value) is not None
        and one.value not in _DOCUMENTED
        for one in node.args[:2]
    )


def size_of_class(node: ast.ClassDef, lines: Sequence[str]) -> tuple[int, int]:
    """Return the number of attributes that its methods assign, and the number of its methods.
    `lines` are the lines of its module. A small number of attributes may be too high."""
    methods = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    used = set(_OWN.findall("\n".join(lines[node.lineno : node.end_lineno])))
    if len(used) <= MAX_ATTRIBUTES:  # whether they are assigned does not matter
        return len(used), len(methods)
    attributes = {
        one.attr
        for method in methods
        for one in ast.walk(method)
        if isinstance(one, ast.Attribute)
        and isinstance(one.ctx, ast.Store)
        and isinstance(one.value, ast.Name)
        and one.value.id == "self"
    }
    return len(attributes), len(methods)


def circles_of(arrows: Mapping[str, set[str]]) -> list[set[str]]:
    """Return the sets of more than one name in which each name is reached from each other name."""
    left = {name: set(to) for name, to in arrows.items()}
    while ends := {name for name, to in left.items() if not to}:
        left = {name: to - ends for name, to in left.items() if name not in ends}
    reached = {name: reachable(name, left) for name in left}
    circles: list[set[str]] = []
    for name in left:
        circle = {other for other in reached[name] if name in reached[other]}
        if len(circle) > 1 and circle not in circles:
            circles.append(circle)
    return circles


def reachable(start: str, arrows: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for name in arrows[waiting.pop()] - found:
            found.add(name)
            waiting.append(name)
    return found


def arrows_up() -> list[str]:
    """Return the imports that the layer contracts of pyproject.toml leave out."""
    text = (ROOT / "pyproject.toml").read_text()
    return re.findall(r'^\s+"(liftlog\.\S+ -> liftlog\.\S+)",?$', text, re.M)


PRODUCT_SOURCES = Sources(*PRODUCT)
TEST_SOURCES = Sources("tests")

FIGURES: Mapping[str, Callable[[], list[str]]] = {
    "functions above 70 lines": lambda: (
        PRODUCT_SOURCES.long_functions() + TEST_SOURCES.long_functions()
    ),
    "modules above 500 lines": PRODUCT_SOURCES.long_modules,
    "classes with more than 24 attributes or 40 methods": PRODUCT_SOURCES.large_classes,
    "modules that their package does not name": PRODUCT_SOURCES.unnamed_modules,
    "circles of imports": PRODUCT_SOURCES.circles,
    "imports that layers leave out": arrows_up,
    'docstrings that begin with "What"': lambda: PRODUCT_SOURCES.docstrings_that_begin_with("What"),
    'docstrings that begin with "Of"': lambda: PRODUCT_SOURCES.docstrings_that_begin_with("Of"),
    'docstrings that begin with "Whether"': lambda: PRODUCT_SOURCES.docstrings_that_begin_with(
        "Whether"
    ),
    "lines of tests that use private names": TEST_SOURCES.private_reaches,
    "lines of tests that import or patch private names": TEST_SOURCES.private_patches,
}

ALLOWED: Mapping[str, int] = {
    "modules above 500 lines": 3,
    "lines of tests that use private names": 147,
    "lines of tests that import or patch private names": 129,
}
"""The limit of each figure; 0 if it is not named here."""


def main() -> None:
    """Print all figures. With words as arguments, print the details of the figures whose names
    contain these words."""
    print(f"{PRODUCT_SOURCES.lines():>7,}  lines of product")
    for name, measure in FIGURES.items():
        found = measure()
        print(f"{len(found):>7,}  {name}" + f" (at most {ALLOWED.get(name, 0)})")
        if any(word in name for word in sys.argv[1:]):
            print(*(f"         {one}" for one in found), sep="\n")


if __name__ == "__main__":
    main()
