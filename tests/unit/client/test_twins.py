"""The asyncio client and the blocking one: the same methods, described once."""

from __future__ import annotations

import inspect

import pytest

from liftlog.client import Client, Consumer, SyncClient, SyncConsumer


@pytest.mark.parametrize(("one", "other"), [(Client, SyncClient), (Consumer, SyncConsumer)])
def test_both_kinds_have_the_same_methods(one: type, other: type) -> None:
    def methods(kind: type) -> dict[str, list[str]]:
        return {
            name: [
                str(p).replace("Sync", "") for p in inspect.signature(method).parameters.values()
            ]
            for name, method in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }

    assert methods(one) == methods(other)


@pytest.mark.parametrize(("one", "other"), [(Client, SyncClient), (Consumer, SyncConsumer)])
def test_what_a_method_does_is_told_in_one_place(one: type, other: type) -> None:
    names = [name for name, _ in inspect.getmembers(one) if not name.startswith("_")]
    assert len(names) > 5
    for name in names:
        told = inspect.getdoc(getattr(one, name))
        assert told is not None, name
        assert not told.startswith("As `"), name
        if getattr(one, name) is not getattr(other, name):  # else they have it from one base
            assert inspect.getdoc(getattr(other, name)) == f"As `{one.__name__}.{name}`.", name
