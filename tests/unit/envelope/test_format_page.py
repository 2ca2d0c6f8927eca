"""The page that specifies the envelope, and the golden file, agree with the code."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from envelope import Envelope, decode, encode

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "envelope.md"
GOLDEN = json.loads((ROOT / "tests" / "golden" / "envelope" / "v1.json").read_text())


def test_the_worked_example() -> None:
    block = PAGE.read_text().split("```hex\n")[1].split("```")[0]
    written = "".join(re.split(r"  +", line)[0] for line in block.splitlines())
    call = re.search(r"^envelope\.encode\((\"hi\".*)\)$", PAGE.read_text(), re.MULTILINE)
    assert call is not None
    data = encode(
        "hi", key="k1", headers={"Trace": "t9"}, ack_subject="acks.me", correlation_id="c7"
    )
    assert call[1] == (
        '"hi", key="k1", headers={"Trace": "t9"}, ack_subject="acks.me", correlation_id="c7"'
    )
    assert bytes.fromhex(written) == data
    assert f"of the {len(data) - 12} bytes that follow" in block


def test_the_two_bytes_that_differ_from_liftbridge() -> None:
    ours, theirs = bytes.fromhex("b90e4c4c"), bytes.fromhex("b90e43b4")
    assert [a == b for a, b in zip(ours, theirs, strict=True)] == [True, True, False, False]


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["name"])
def test_golden(case: dict[str, Any]) -> None:
    data, fields = bytes.fromhex(case["hex"]), case["fields"]
    raw = {
        name: value.encode() if name in ("value", "key") and value is not None else value
        for name, value in fields.items()
    }
    assert decode(data) == Envelope(**raw)
    assert encode(**fields, crc=case["crc"]) == data


def test_the_golden_file_is_not_empty() -> None:
    assert len(GOLDEN) >= 8
