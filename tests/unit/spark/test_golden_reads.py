"""The golden files for readers, read by Python. `spark-connector/test` checks that Java reads them
in the same way."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.disks.golden_log import GOLDEN
from support.disks.golden_reads import STREAMS, damage, damaged_batches, files, streams


def stored(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text())


def as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def test_the_streams_are_written_the_same_way() -> None:
    for stream, made in files().items():
        directory = GOLDEN / stream / "streams/orders"
        assert made.keys() == {path.name for path in directory.iterdir()}
        for name, raw in made.items():
            if not name.endswith(".subjects"):  # releases of zlib compress differently
                assert (directory / name).read_bytes() == raw, (stream, name)


def test_damaged_batches_are_refused() -> None:
    assert as_json(damaged_batches()) == stored("damaged-batches")


@pytest.mark.parametrize("name", STREAMS)
def test_the_content_of_a_stream(name: str) -> None:
    assert as_json(streams())[name] == stored("streams")[name]


def test_damage_is_reported() -> None:
    made = as_json(damage())
    assert len({case["name"] for case in made}) == len(made)
    for case, expected in zip(made, stored("damage"), strict=True):
        assert case == expected
