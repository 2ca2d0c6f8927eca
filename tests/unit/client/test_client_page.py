"""docs/reference/client.md names every method, parameter and option."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from liftlog.client import (
    Client,
    Consumer,
    ConsumerOptions,
    GroupConsumer,
    ReadOptions,
    Worker,
    connect,
    connect_sync,
)
from liftlog.client.reading.next_fetch import DEFAULT_FETCH_BYTES
from liftlog.client.reading.read_ahead import DEFAULT_READ_AHEAD_BYTES

PAGE = (Path(__file__).parents[3] / "docs/reference/client.md").read_text()
SECTIONS = dict(re.findall(r"^## (\w+).*?\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
TOLD = {None: "none", True: "yes", False: "no", "": "empty"}


def rows(section: str) -> dict[str, str]:
    return dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", SECTIONS[section], re.MULTILINE))


@pytest.mark.parametrize(
    ("function", "section"),
    [
        (connect, "connect"),
        (connect_sync, "connect"),
        (Client.consumer, "consumer"),
        (Client.group, "group"),
        (Client.worker, "worker"),
    ],
)
def test_every_parameter_with_its_default(function: Callable[..., Any], section: str) -> None:
    found = rows(section)
    for name, parameter in inspect.signature(function).parameters.items():
        if (
            name in ("self", "name", "stream", "consumer")
            or parameter.kind is parameter.VAR_KEYWORD
        ):
            continue
        default = parameter.default
        told = str(default)
        if default in (None, "") or isinstance(default, bool):
            told = TOLD[default]
        assert found[name].strip("`") == told, name


def test_every_option_of_a_read() -> None:
    for name in ReadOptions.__annotations__:
        assert f"`{name}`" in SECTIONS["Methods"], name
    found = rows("Methods")
    assert found["fetch_bytes"] == f"{DEFAULT_FETCH_BYTES >> 20} MiB"
    assert found["read_ahead_bytes"] == f"{DEFAULT_READ_AHEAD_BYTES >> 20} MiB"


def test_every_setting_of_a_consumer() -> None:
    for name in ConsumerOptions.__annotations__:
        assert f"`{name}`" in SECTIONS["worker"], name


@pytest.mark.parametrize(
    ("kind", "section"),
    [(Client, "Methods"), (Consumer, "consumer"), (GroupConsumer, "group"), (Worker, "worker")],
)
def test_every_method(kind: type, section: str) -> None:
    for name in vars(kind):
        if not name.startswith("_"):
            assert re.search(rf"`{name}[`(]", SECTIONS[section]), name
    for name, _ in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_"):
            assert re.search(rf"`{name}[`(]", SECTIONS[section]), name
