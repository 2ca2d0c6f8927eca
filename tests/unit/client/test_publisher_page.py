"""docs/reference/publisher.md names every parameter, result and error."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from liftlog.client import publisher
from liftlog.client.publishing import results
from liftlog.errors import LiftlogError

PAGE = (Path(__file__).parents[3] / "docs/reference/publisher.md").read_text()
CONSTRUCTOR = PAGE.partition("## publish and submit")[0]
ROWS = dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", PAGE, re.MULTILINE))


def test_every_parameter_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", CONSTRUCTOR, re.MULTILINE))
    for name, parameter in inspect.signature(publisher.Publisher).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        default = parameter.default
        told = {(): "none", False: "no", None: "unknown"}.get(default, str(default))
        assert rows[name].strip("`") == told, name


@pytest.mark.parametrize("method", ["publish", "submit"])
def test_every_argument(method: str) -> None:
    signature = inspect.signature(getattr(publisher.Publisher, method))
    assert set(signature.parameters) - {"self"} <= ROWS.keys()


def test_every_error_and_result() -> None:
    for name, item in vars(results).items():
        if not inspect.isclass(item) or item.__module__ != results.__name__:
            continue
        assert f"`{name}`" in PAGE
        assert getattr(publisher, name) is item, "not offered by liftlog.client.publisher"
        if issubclass(item, LiftlogError) and name != "PublishFailed":
            assert ROWS[name] == f"`{item.name}`"
        for field in getattr(item, "_fields", ()):
            assert f"`{field}`" in PAGE, field
