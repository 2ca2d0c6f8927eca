"""Chosen fields of JSON as columns, and versions of a key side by side."""

from __future__ import annotations

import json
import random
import re
import sys
from html import unescape
from typing import Any
from urllib.parse import parse_qsl

import pytest

from liftlog.errors import InvalidArgument
from liftlog.server.web.fields import MAX_CELL_CHARS, MAX_FIELDS, MAX_LINES, Fields, compared

DOCUMENT = {
    "customer": {"id": 17, "name": "Ann"},
    "items": [{"sku": "A-1", "n": 2}, {"sku": "B-2"}, 3],
    "a.b": True,
    "none": None,
}


def cells(fields: str, value: Any = DOCUMENT) -> list[str | None]:
    return Fields.parse(fields).of(json.dumps(value).encode())


@pytest.mark.parametrize(
    ("field", "cell"),
    [("customer.id", "17"), ("customer.name", "Ann"), ("items[0].sku", "A-1"),
     ("items[*].sku", "A-1, B-2"), ("items[*].n", "2"), ("items[2]", "3"), ('["a.b"]', "true"),
     ("none", "null"), ("customer", '{"id": 17, "name": "Ann"}'), ("$.customer.id", "17"),
     ("absent", None), ("items[9]", None), ("customer.id.more", None),
     ("items[*].absent", None)],
)  # fmt: skip
def test_a_field_and_its_cell(field: str, cell: str | None) -> None:
    assert cells(field) == [cell]


def test_several_fields_and_what_has_none() -> None:
    assert cells("none, customer.id ,none") == ["null", "17"]  # each once
    assert cells('["a,b"], x', {"a,b": 1, "x": 2}) == ["1", "2"]
    fields = Fields.parse("a,b")
    for raw in (None, b"", b"text", b"{", b"[" * 100_000, b"\xff", b'{"c": 1}', b"17"):
        assert fields.of(raw) == [None, None]
    assert cells("a", {"a": "x" * 5000})[0] == "x" * MAX_CELL_CHARS + " …"
    assert cells("a[*]", {"a": list(range(100))})[0] == ", ".join(map(str, range(20))) + ", …"
    assert cells("a", {"a": "one\n\x1b two"}) == ["one ␛ two"]


@pytest.mark.parametrize(
    "wrong", [",", " , ", "a b", "a.", "a[", "a = 1", ",".join(f"f{n}" for n in range(99))]
)
def test_what_names_no_fields(wrong: str) -> None:
    with pytest.raises(InvalidArgument):
        Fields.parse(wrong)
    assert len(Fields.parse(",".join(f"f{n}" for n in range(MAX_FIELDS))).names) == MAX_FIELDS


def test_both_texts_can_be_read_from_their_comparison() -> None:
    chance = random.Random(5)
    for _ in range(300):
        old = [chance.choice("abc") for _ in range(chance.randrange(1, 30))]
        new = list(old)
        for _ in range(chance.randrange(4)):
            at = chance.randrange(len(new) + 1)
            new[at : at + chance.randrange(3)] = chance.choices("abcd", k=chance.randrange(3))
        pairs = compared("\n".join(old), "\n".join(new))
        for text, side in (("\n".join(old), "left"), ("\n".join(new), "right")):
            at, lines = 0, text.split("\n")
            for pair in pairs:
                line = getattr(pair, side)
                if pair.kind == "skipped":
                    at += pair.left_out
                elif line is not None:
                    assert line == lines[at]
                    at += 1
            assert at == len(lines)
        assert all(pair.left == pair.right for pair in pairs if pair.kind == "same")
        is_same = all(pair.kind != "changed" for pair in pairs)
        assert is_same == (old == new)


def test_only_the_surroundings_of_changes_are_shown() -> None:
    old = [str(n) for n in range(100)]
    pairs = compared("\n".join(old), "\n".join([*old[:50], "new", *old[51:]]))
    assert [pair.kind for pair in pairs] == (
        ["skipped"] + ["same"] * 3 + ["changed"] + ["same"] * 3 + ["skipped"]
    )
    assert (pairs[0].left_out, pairs[4].left, pairs[4].right) == (47, "50", "new")
    assert len(compared("x\n" * 10 * MAX_LINES, "y\n" * 10 * MAX_LINES)) == MAX_LINES


async def page(browser: Any, question: str) -> dict[str, Any]:
    status, text, _ = await browser.get(f"/ui/streams/orders/versions.json?{question}")
    assert status == 200, text
    found: dict[str, Any] = json.loads(text)
    return found


def test_lines_that_repeat_are_not_compared_with_each_other() -> None:
    """One thread compares, and scans the logs for all readers."""
    left = "\n".join("ab"[number % 2] for number in range(MAX_LINES))
    right = "\n".join("aabb"[number % 4] for number in range(MAX_LINES))
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        pairs = compared(left, right)
    finally:
        sys.setprofile(None)
    assert calls < 200_000, "millions take a second"
    assert "\n".join(pair.left or "" for pair in pairs) == left
    assert "\n".join(pair.right or "" for pair in pairs) == right
    assert [pair.kind for pair in compared(left, left)] == ["skipped"]


async def test_a_table_of_fields(site: Any, orders: Any) -> None:
    async with site() as browser:
        found = await browser.records("fields=n,m")
        assert found["fields"] == ["n", "m"]
        assert [row["fields"] for row in found["records"]] == [[None, None]] * 4 + [["1", None]]
        _, text, _ = await browser.get("/ui/streams/orders/records?fields=n")
        assert 'class="chosen cards" data-records>' in text
        status, text, _ = await browser.get("/ui/streams/orders/records?fields=a%20b")
        assert status == 400
        assert "not valid at character 2" in text


async def test_a_text_that_looks_like_a_field_is_asked_about(site: Any, orders: Any) -> None:
    async with site() as browser:
        for question, is_told in (("value=n%20%3D%201", True), ("value=plain", False),
                                  ("value=n%20%3D%201&kind=json", False),
                                  ("value=a%20b%20%3D%201", False), ("", False)):  # fmt: skip
            _, text, _ = await browser.get(f"/ui/streams/orders/records?{question}")
            assert ("Searched as a text" in text) == is_told, question
        _, text, _ = await browser.get("/ui/streams/orders/records?value=n%20%3D%201")
        link = re.search(r'href="([^"]*)">Search for the JSON field', text)
        assert link is not None
        asked = dict(parse_qsl(unescape(link[1])[1:]))
        assert (asked["value"], asked["kind"]) == ("n = 1", "json")


async def test_versions_of_a_key(site: Any, orders: Any) -> None:
    for number in range(25):
        orders.append([json.dumps({"n": number, "m": "same"}).encode()], keys=[b"k-2"])
    async with site() as browser:
        found = await page(browser, "key=k-2")
        offsets = [one["offset"] for one in found["versions"]]
        assert (len(offsets), offsets[0] - offsets[-1], found["at_end"]) == (20, 19, False)
        assert (found["before"]["offset"], found["after"]["offset"]) == (offsets[1], offsets[0])
        changed = [one for one in found["lines"] if one["kind"] == "changed"]
        assert [(one["left"], one["right"]) for one in changed] == [('  "n": 23,', '  "n": 24,')]
        older = await page(browser, f"key=k-2&offset={found['next_offset']}")
        assert (len(older["versions"]), older["at_end"]) == (5, True)
        chosen = f"key=k-2&before={offsets[5]}&after={offsets[1]}"
        found = await page(browser, chosen)
        assert '"n": 19' in found["before"]["text"]
        _, text, _ = await browser.get(f"/ui/streams/orders/versions?{chosen}")
        assert "Search older versions" in text
        assert (await page(browser, "key=k-2&before=999&after=1"))["before"] is None
        tombstone = await page(browser, "key=k-1")
        assert tombstone["after"]["is_tombstone"]
        assert (await page(browser, "key=hex:ff00"))["before"] is None
        assert (await page(browser, "key=absent"))["versions"] == []
        for wrong in ("", "key=hex:zz", "key=a&before=x"):
            status, _, _ = await browser.get(f"/ui/streams/orders/versions?{wrong}")
            assert status == 400


async def test_no_version_that_may_not_be_read(site: Any, orders: Any, policy: Any) -> None:
    orders.append([b"us"], subject=b"orders.us.new", keys=[b"k-3"])
    orders.append([b"eu"], subject=b"orders.eu.new", keys=[b"k-3"])
    async with site(policy) as browser:
        await browser.sign_in("eu")
        found = await page(browser, "key=k-3")
        (version,) = found["versions"]
        assert version["text"] == "eu"
        secret = version["offset"] - 1
        found = await page(browser, f"key=k-3&before={secret}&after={version['offset']}")
        assert (found["before"], found["lines"]) == (None, [])
