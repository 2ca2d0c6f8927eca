"""The blocking client is the output of `tools/blocking_client.py` for the asyncio client."""

from __future__ import annotations

import inspect
import re
import shutil
from pathlib import Path

import pytest

from liftlog import client
from liftlog.client import SyncClient, SyncConsumer, SyncRecordReader
from tools import blocking_client


@pytest.fixture(scope="module")
def made() -> dict[Path, str]:
    """Map the path of each generated module to its text."""
    return blocking_client.render_all()


def test_the_modules_are_up_to_date(made: dict[Path, str]) -> None:
    for path, text in made.items():
        assert path.read_text() == text, "run: make blocking"


@pytest.mark.parametrize("folder", blocking_client.FOLDERS.values(), ids=str)
def test_every_other_module_is_named_as_written_by_hand(
    made: dict[Path, str], folder: Path
) -> None:
    names = {path.name for path in made if path.parent == folder}
    others = {path.name for path in folder.glob("*.py")} - names
    assert names
    assert others <= blocking_client.BY_HAND


def test_the_check_notices_a_change_of_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder, *others), targets = blocking_client.FOLDERS.keys(), blocking_client.FOLDERS.values()
    shutil.copytree(folder, tmp_path / "aio")
    source = tmp_path / "aio/calls.py"
    source.write_text(source.read_text().replace("dry_run: bool = False", "dry_run: bool = True"))
    folders = dict(zip([tmp_path / "aio", *others], targets, strict=True))
    monkeypatch.setattr(blocking_client, "FOLDERS", folders)
    monkeypatch.setattr(blocking_client, "ROOT", Path("/"))
    assert blocking_client.main(["--check"]) == 1
    assert "blocking/calls.py is not what its source makes" in capsys.readouterr().out


@pytest.mark.parametrize("kind", [SyncClient, SyncConsumer, SyncRecordReader])
def test_help_speaks_of_no_asyncio(kind: type) -> None:
    docs = [inspect.getdoc(kind), *(inspect.getdoc(item) for _, item in inspect.getmembers(kind))]
    assert len(docs) > 5
    for doc in docs:
        found = re.search(r"(?i)\bawait|async|event loop|task\b|cancelled", doc or "")
        assert found is None, doc


@pytest.mark.parametrize("kind", [client.Client, client.Consumer])
def test_every_call_names_its_errors(kind: type) -> None:
    calls = {
        name: inspect.getdoc(item) or ""
        for name, item in inspect.getmembers(kind)
        if inspect.iscoroutinefunction(item) and not name.startswith("_")
    }
    assert calls
    assert {name for name, doc in calls.items() if not re.search("[Rr]aises", doc)} <= {"close"}


def test_every_parameter_of_fetch_is_explained() -> None:
    doc = inspect.getdoc(client.Client.fetch) or ""
    parameters = inspect.signature(client.Client.fetch).parameters.keys() - {"self", "stream"}
    assert len(parameters) == 9
    assert {name for name in parameters if f"`{name}`" not in doc} == set()


def test_what_asyncio_alone_has_is_an_error() -> None:
    with pytest.raises(blocking_client.NotCovered, match=r"asyncio\.Queue .*line 3"):
        blocking_client.blocking("import asyncio\n\nx = asyncio.Queue()\n", set())


def test_a_phrase_that_no_source_contains_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(blocking_client.PHRASES, "words that nothing has", "")
    with pytest.raises(blocking_client.NotCovered, match="words that nothing has"):
        blocking_client.render_all()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "async def f(self) -> None:\n    await g(await h(), [x async for x in y])\n",
            "def f(self) -> None:\n    g(h(), [x for x in y])\n",
        ),
        ("import asyncio\n\n\nasyncio.sleep(1)\n", "import time\n\n\ntime.sleep(1)\n"),
        ("import asyncio\nimport time\nasyncio.sleep(1)\n", "\nimport time\ntime.sleep(1)\n"),
        ("# a Client in `Client.read`\n", "# a Client in `SyncClient.read`\n"),
        ("x = 'await Client'\n", "x = 'await Client'\n"),
    ],
)
def test_code_is_replaced_by_tokens_and_text_by_phrases(source: str, expected: str) -> None:
    assert blocking_client.blocking(source, set()) == expected
