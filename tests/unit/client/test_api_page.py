"""docs/reference/client-api.md agrees with the code, and lacks nothing of the package."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from liftlog import client
from tools.pages.client import TWINS, render

PAGE = (Path(__file__).parents[3] / "docs/reference/client-api.md").read_text()
HEADINGS = re.findall(r"^##+ (.+)$", PAGE, re.MULTILINE)


def test_the_page_is_up_to_date() -> None:
    assert render() == PAGE, "run: make pages"


@pytest.mark.parametrize("name", client.__all__)
def test_every_name_of_the_package_is_on_it(name: str) -> None:
    assert name in HEADINGS or name in TWINS or f"| `{name}` |" in PAGE


def test_every_method_is_explained() -> None:
    sections = re.split(r"^##+ ", PAGE, flags=re.MULTILINE)[1:]
    bare = [one.split("\n")[0] for one in sections if one.rstrip().endswith("```")]
    assert bare == []
    assert "|  |" not in PAGE


@pytest.mark.parametrize(
    ("twin", "original"),
    [
        (client.SyncBatchReader, client.BatchReader),
        (client.SyncRecordReader, client.RecordReader),
    ],
)
def test_the_twins_have_the_methods_that_the_page_promises(twin: type, original: type) -> None:
    def methods(cls: type) -> set[str]:
        found = {name for name, _ in inspect.getmembers(cls) if not name.startswith("_")}
        return {"close" if name == "aclose" else name for name in found}

    assert methods(twin) == methods(original)
