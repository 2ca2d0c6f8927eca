"""docs/reference/acl.md against the code."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from acl import document, policy, rules
from acl.tokens import hash_token, new_secret
from liftlog.protocol.messages import REQUESTS
from liftlog.protocol.workers import AckWork, PullWork, Rest
from liftlog.server.access import audit
from liftlog.server.access.guessing import PAIR, PLACE, PRINCIPAL
from liftlog.server.requests.rights import HANDLERS, STARTERS

PAGE = (Path(__file__).parents[3] / "docs/reference/acl.md").read_text()


def section(title: str) -> str:
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", PAGE, re.S | re.M)
    assert found, title
    return found[1]


def rows(title: str) -> list[list[str]]:
    lines = [line for line in section(title).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_the_operations_and_their_requests() -> None:
    described = {
        row[0].strip("`"): set(re.findall(r"`([a-z]+)`", row[1])) & set(REQUESTS)
        for row in rows("Operations")
    }
    declared: dict[str, set[str]] = {operation: set() for operation in rules.OPERATIONS}
    free = set()
    for kind, handler in [*HANDLERS.items(), *STARTERS.items()]:
        if handler.operation is None:
            free.add(kind.KIND)
        else:
            declared[handler.operation].add(kind.KIND)
        if getattr(handler, "and_read", False) and handler.operation != "work":
            declared["read"].add(kind.KIND)
    declared["read"].add("fetch")
    declared["work"] |= {kind.KIND for kind in (PullWork, Rest, AckWork)}
    declared["replicate"] |= {
        "peer", "replicate", "suspect", "resign", "ends", "forward", "copies",
        "consumerstates",
    }  # fmt: skip
    assert described == declared
    rest = next(
        one for one in section("Operations").split("\n\n") if "`list`" in one and "|" not in one
    )
    assert set(re.findall(r"`([a-z]+)`", rest)) & set(REQUESTS) == free | {"ping", "cancel"}


def test_the_keys() -> None:
    assert [row[0].strip("`") for row in rows("principals")] == [
        "token_hash", "nkey", "certificate_cn", "unix_uid",
    ]  # fmt: skip
    assert [row[0].strip("`") for row in rows("roles")] == [
        "allow", "streams", "subjects", "consumers", "attach",
    ]  # fmt: skip


def test_the_example_is_a_good_file() -> None:
    text = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)[0]
    whole = yaml.safe_load(text)
    whole["principals"]["billing"]["token_hash"] = hash_token(new_secret())
    loaded = policy.Policy.load(yaml.safe_dump(whole))
    assert loaded.decide_read("billing", "orders").subjects == ("orders.eu.>",)


def test_the_limits() -> None:
    told = [row[1] for row in rows("Limits")][3:]
    assert told == [
        f"{PAIR.burst}, then one in {1 / PAIR.per_second:g} s",
        f"{PLACE.burst}, then one a second",
        f"{PRINCIPAL.burst}, then two a second",
    ]
    assert (PLACE.per_second, PRINCIPAL.per_second) == (1, 2)
    assert f"at most {audit.PER_PRINCIPAL.burst:g} lines at once" in PAGE
    assert audit.PER_PRINCIPAL.per_second == 1
    assert f"beyond {document.MAX_DEPTH} levels" in PAGE
    assert f"{document.MAX_VALUES:,} values" in PAGE.replace("\n", " ")
    assert f"{document.MAX_CHARACTERS >> 20} MiB" in PAGE


def test_the_events() -> None:
    source = Path(audit.__file__).read_text()
    written = set(re.findall(r'"([a-z-]+) principal=%s', source))
    assert {row[0].strip("`") for row in rows("The audit")} == written
