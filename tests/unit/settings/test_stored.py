"""Versions that know fewer settings of a stream can read those that are stored."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel
from support.repository import REPOSITORY

from liftlog.errors import InvalidArgument, NewerFormat
from liftlog.settings import StreamSettings, parse_stream_settings
from liftlog.settings.keys import fields_of
from liftlog.settings.stored import ADDED_LATER, stored_form

KNOWN = (REPOSITORY / "tests/golden/settings/stream-settings-0.1.0.txt").read_text().split()
PLAIN = parse_stream_settings({"subject": "orders.>"})


def paths(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for key, info in fields_of(model):
        yield prefix + key
        for one in typing.get_args(info.annotation) or (info.annotation,):
            if isinstance(one, type) and issubclass(one, BaseModel):
                yield from paths(one, f"{prefix}{key}.")


def test_settings_that_came_later_are_listed() -> None:
    """The golden file has the settings of 0.1.0. A new one does not belong there, but in
    ADDED_LATER, with the value that says what older versions do."""
    new = {one for one in paths(StreamSettings) if one not in KNOWN}
    assert new <= ADDED_LATER.keys()
    assert set(KNOWN) <= set(paths(StreamSettings)), "older versions have stored these"


@pytest.mark.parametrize("path", ADDED_LATER)
def test_what_asks_for_nothing_is_not_stored(path: str) -> None:
    stored: Any = stored_form(PLAIN)
    *sections, key = path.split(".")
    for section in sections:
        stored = stored.get(section) or {}
    assert key not in stored
    assert parse_stream_settings(stored_form(PLAIN), exists=True) == PLAIN


@pytest.mark.parametrize(
    "more",
    [
        {"retention": {"discard": "new", "max_messages": 5}},
        {"jetstream": {"deny_delete": True}},
        {"compaction": {"enabled": True}},
    ],
)
def test_what_asks_for_something_is(more: dict[str, Any]) -> None:
    settings = parse_stream_settings({"subject": "orders.>", **more})
    stored = stored_form(settings)
    assert parse_stream_settings(stored, exists=True) == settings
    (section,) = more
    assert more[section].items() <= stored[section].items()


def test_settings_of_a_newer_version_are_refused_as_such() -> None:
    stored = {**stored_form(PLAIN), "mirror": {"of": "other"}}
    stored["retention"] = {**stored["retention"], "keep": "all"}
    with pytest.raises(NewerFormat, match=r"retention\.keep, mirror"):
        parse_stream_settings(stored, exists=True)
    with pytest.raises(InvalidArgument, match="unknown key"):
        parse_stream_settings(stored)  # as a user may write it
