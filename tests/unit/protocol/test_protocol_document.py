"""docs/reference/protocol.md against the code, both ways."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.clients.nkey_seeds import seed_of

from acl.nkeys import SigningKey
from liftlog.errors import WIRE_ERRORS
from liftlog.protocol import limits
from liftlog.protocol import messages as m
from liftlog.protocol.described import StreamInfo
from liftlog.protocol.frames import FrameReader, encode_frame
from liftlog.protocol.handshake import text_to_sign
from liftlog.protocol.wire import Message, wire_fields
from liftlog.records.decode import decode_batch
from liftlog.records.encode import encode_batch
from liftlog.server.cleaning.state import StreamCleaning

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/reference/protocol.md").read_text()
GOLDEN = ROOT / "tests/golden/protocol"

KINDS: dict[str, type[Message]] = {**m.OPENING, **m.REQUESTS, **m.ANSWERS}


def section(title: str) -> str:
    """The text under a heading, up to the next one."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", PAGE, re.S | re.M)
    assert found, f"the page has no section {title!r}"
    return found[1]


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


@pytest.mark.parametrize("kind", KINDS)
def test_every_message_is_described_with_its_keys_and_types(kind: str) -> None:
    described = {row[0].strip("`"): row[1] for row in rows(section(kind))}
    declared = {
        field.key: field.kind.label + ("" if field.required else "?")
        for field in wire_fields(KINDS[kind])
    }
    assert described == declared
    assert bool(declared) != ("No keys" in section(kind))


def test_no_message_is_described_that_does_not_exist() -> None:
    titles = set(re.findall(r"^### ([a-z]+)$", PAGE, re.M))
    assert titles == set(KINDS)


def test_the_error_codes() -> None:
    described = [(int(code), name.strip("`"), retriable) for code, name, retriable, _ in rows(
        section("Error codes")
    )]  # fmt: skip
    declared = [
        (code, cls.name, "yes" if cls.retriable else "no")
        for code, cls in sorted(WIRE_ERRORS.items())
    ]
    assert described == declared


def test_the_description_of_a_stream() -> None:
    described = [row[0].strip("`") for row in rows(section("Description of a stream"))]
    assert described == list(StreamInfo("s", "a").to_wire())


def test_the_compaction_of_a_stream() -> None:
    described = re.findall(
        r"`(\w+)`", " ".join(r[0] for r in rows(section("Compaction of a stream")))
    )
    manifest = SimpleNamespace(cleaned_below=1, tombstones_removed_below=1)
    log = SimpleNamespace(view=SimpleNamespace(manifest=manifest))
    declared = StreamCleaning().to_info(log, enabled=True, now=0.0)  # type: ignore[arg-type]
    assert described == list(declared)


def test_the_limits_in_the_text() -> None:
    wire = limits.WireLimits()
    assert f"at most {limits.MAX_DEPTH} levels" in PAGE
    assert f"at most {limits.MAX_REQUEST_VALUES} values" in PAGE
    assert f"{limits.MAX_HELLO_VALUES} before the `welcome`" in PAGE
    assert limits.MAX_ANSWER_VALUES == 8_000_000
    assert "8 million values" in PAGE
    assert f"at most {limits.HELLO_FRAME_BYTES} bytes" in PAGE
    for name in ("max_request_bytes", "max_in_flight", "max_fetch_bytes", "max_wait_ms"):
        assert re.search(rf"`{name}`.*absent: {getattr(wire, name)}\)", section("welcome"))


INCARNATION = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"

BODY = bytes(
    encode_batch(
        base_offset=1,
        leader_epoch=1,
        commit_group=1,
        stamps=[(1_700_000_000_000_000_000, 1)],
        subjects=[b"orders.new"],
        values=[b"hello"],
    )
)

KEY = SigningKey(seed_of(bytes(range(32))))
TO_SIGN = text_to_sign(bytes(range(16)), bytes(range(16, 32)), "c0ffee00c0ffee00", None)

EXAMPLE: dict[str, tuple[int, Message]] = {
    "hello": (1, m.Hello([1], bytes(range(16)), "example/1.0")),
    "challenge": (1, m.Challenge(1, "c0ffee00c0ffee00", bytes(range(16, 32)), ["anonymous"])),
    "auth": (2, m.Auth("anonymous")),
    "auth-nkey": (2, m.Auth("nkey", public_key=KEY.public_key, signature=KEY.sign(TO_SIGN))),
    "welcome": (2, m.Welcome(None, "liftlog/0.1.0", 1048576, 64, 8388608, 60000)),
    "ping": (3, m.Ping()),
    "pong": (3, m.Pong()),
    "fetch": (4, m.Fetch("orders", start="earliest", max_bytes=1048576, max_wait_ms=500)),
    "data": (4, m.FetchHeader(1, 1, 2, 1, 2, 1, 2, 1, INCARNATION, len(BODY))),
    "error": (
        5,
        m.ErrorAnswer(10, "STREAM_NOT_FOUND", "there is no stream 'x'", hint="`liftlog stream ls`"),
    ),
}


@pytest.mark.parametrize("name", EXAMPLE)
def test_the_golden_frames_are_what_the_code_writes_and_reads(name: str) -> None:
    request_id, message = EXAMPLE[name]
    golden = (GOLDEN / f"{name}.bin").read_bytes()
    assert encode_frame(message.to_map(request_id)) == golden
    frames = FrameReader(max_frame_bytes=4096, max_body_bytes=1000)
    frames.get_buffer()[: len(golden)] = golden
    frames.buffer_updated(len(golden))
    received = frames.next_event()
    assert isinstance(received, dict)
    assert received["i"] == request_id
    assert KINDS[received["k"]].from_map(received) == message


def test_the_page_shows_what_an_nkey_signs() -> None:
    shown = re.search(r"^The text that the client has.*?```text\n(.*?)```", PAGE, re.S | re.M)
    assert shown
    digits = "".join(line.split("  ")[0] for line in shown[1].splitlines())
    assert bytes.fromhex(digits) == TO_SIGN
    assert seed_of(bytes(range(32))) in PAGE


def test_the_methods_are_those_of_the_page() -> None:
    described = [row[0].strip("`") for row in rows(section("Authentication"))]
    assert described == list(m.METHODS)


def test_the_golden_body_is_one_record_batch() -> None:
    golden = (GOLDEN / "data-body.bin").read_bytes()
    assert golden == BODY
    assert decode_batch(golden).values() == [b"hello"]
    header = EXAMPLE["data"][1]
    assert isinstance(header, m.FetchHeader)
    assert header.body_length == len(golden)


@pytest.mark.parametrize("name", [*EXAMPLE, "data-body"])
def test_the_page_shows_the_golden_frames(name: str) -> None:
    shown = re.search(rf"^`{name}`.*?```\n(.*?)```", section("Worked example"), re.S | re.M)
    assert shown, f"the page does not show {name}"
    digits = "".join(line.split("  ")[0] for line in shown[1].splitlines())
    assert bytes.fromhex(digits) == (GOLDEN / f"{name}.bin").read_bytes()
