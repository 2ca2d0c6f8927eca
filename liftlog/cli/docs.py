"""`liftlog docs`: pages of the documentation, which are part of the wheel."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import click

import liftlog
from liftlog.cli.lib.command_groups import Command
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.options import debug_option, output_format, output_option
from liftlog.cli.lib.output import print_table, write_objects, write_text
from liftlog.cli.lib.problems import Problem
from liftlog.cli.lib.suggestions import closest

_PARTS = ("tutorial", "how-to", "reference", "explanation")
_ONE_THAT_IS_THERE = "reference/settings.md"
"""A file that only liftlog's folder `docs` contains. Another distribution may also install a folder
`docs`."""


class Page(NamedTuple):
    """A page of the documentation. `name` is PART/PAGE, as in the addresses of the
    documentation."""

    name: str
    title: str
    path: Path


def all_pages() -> list[Page]:
    """Return the pages in the order of the parts. Raises Problem if this installation has none."""
    package = Path(liftlog.__file__).parent
    for folder in (package / "docs", package.parent / "docs"):  # in a wheel; in a working copy
        if (folder / _ONE_THAT_IS_THERE).is_file():
            return [
                _page(part, path)
                for part in _PARTS
                for path in sorted((folder / part).glob("*.md"))
            ]
    raise Problem("this installation has no documentation", ExitCode.NOT_FOUND)


def _page(part: str, path: Path) -> Page:
    with path.open(encoding="utf-8") as file:
        return Page(f"{part}/{path.stem}", file.readline().lstrip("#").strip(), path)


def find_page(asked: str) -> Page:
    """Find a page by PART/PAGE, or by PAGE if only one part has it. Raises Problem."""
    asked = asked.removeprefix("docs/").removesuffix(".md")
    pages = all_pages()
    found = [page for page in pages if asked in (page.name, page.path.stem)]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(page.name for page in found)
        raise Problem(f"several pages are called {asked!r}: {names}", ExitCode.USAGE)
    near = closest(asked, [page.name for page in pages] + [page.path.stem for page in pages])
    raise Problem(
        f"there is no page {asked!r}",
        ExitCode.NOT_FOUND,
        hint=f"did you mean {near!r}?" if near else "`liftlog docs` lists the pages",
    )


@click.command(cls=Command, short_help="Show a page of the documentation, or list them.")
@click.argument("page", required=False)
@output_option
@debug_option
def docs(page: str | None) -> None:
    """Show a page of the documentation of this version; without PAGE, list all pages.

    In a terminal, the command shows the text one screen at a time.

    \b
    Examples:
      liftlog docs
      liftlog docs first-stream
      liftlog docs reference/settings
    """
    if page is not None:
        text = find_page(page).path.read_text(encoding="utf-8")
        if sys.stdout.isatty():
            click.echo_via_pager(text)
        else:
            write_text(text)
        return
    pages, style = all_pages(), output_format()
    if style == "table":
        print_table(("PAGE", "TITLE"), [(one.name, one.title) for one in pages])
    else:
        write_objects([{"name": one.name, "title": one.title} for one in pages], style)
