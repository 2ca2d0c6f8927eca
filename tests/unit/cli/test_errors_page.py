"""docs/reference/errors.md says what the classes say, and every error is on it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from liftlog.cli.errors import local_errors, told
from liftlog.errors import WIRE_ERRORS, LiftlogError
from tools.pages.errors import PUBLISHER_ERRORS, render

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/reference/errors.md").read_text()
ON_PAGE = [*WIRE_ERRORS.values(), *local_errors(), *PUBLISHER_ERRORS]
ELSEWHERE = {
    "PublishFailed": "the root of those of the publisher",
    "LocalProtocolError": "a mistake in liftlog itself",
    "Problem": "what a command finds out by itself, in words and exit codes of its own",
    "SourceDamaged": "a worker process tells its daemon",
    "PatchDamaged": "a worker process tells its daemon",
    "NoBucket": "a ConfigError, told by a start and by `liftlog cluster init`",
    "NotEnoughServers": "a ConfigError, told by `liftlog cluster init`",
    "NoRecord": "docs/reference/http.md",
    "BodyTooLarge": "docs/reference/http.md",
    "UnsupportedMedia": "docs/reference/http.md",
    "NotRepresentable": "docs/reference/http.md",
}


def every_error() -> set[str]:
    """The names of all classes below LiftlogError, without importing all of liftlog."""
    sources = [path.read_text() for path in (ROOT / "liftlog").rglob("*.py")]
    bases = re.findall(r"^class (\w+)\((\w+)\):", "\n".join(sources), re.MULTILINE)
    found = {"LiftlogError"}
    while more := {name for name, base in bases if base in found} - found:
        found |= more
    return found - {"LiftlogError"}


def test_the_page_is_up_to_date() -> None:
    assert render() == PAGE, "run: make pages"


def test_every_error_of_liftlog_is_on_it() -> None:
    found = every_error()
    assert len(found) > 40
    assert {name for name in found if f"| `{name}` |" not in PAGE} == ELSEWHERE.keys()


@pytest.mark.parametrize("kind", ON_PAGE, ids=lambda kind: kind.__name__)
def test_every_error_says_what_it_means_and_what_to_do(kind: type[LiftlogError]) -> None:
    for sentence in told(kind):
        assert re.fullmatch(r"[A-Z].{9,}\.", sentence), sentence
