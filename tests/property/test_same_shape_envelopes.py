"""Envelopes that are decoded together give the same results as envelopes that are decoded alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import msgpack
from crc32c import crc32c
from hypothesis import given, settings

import envelope
from envelope import liftbridge, same_shape
from envelope.liftbridge import Ack, Publish
from envelope.same_shape import Alike
from liftlog.sequencing.acks import publish_commands
from liftlog.sequencing.liftbridge import ack_commands

EXAMPLES = settings.default.max_examples
"""The number in the profile: 15 in `make test`, 50 in CI, many more in `make fuzz`."""
LETTERS = st.sampled_from(["a", "b", "-", " ", "\x00", "\x7f", ".", "*", "$", "ü"])
WORDS = st.one_of(st.text("abc-", min_size=3, max_size=3), st.text(LETTERS, min_size=3, max_size=3))
LINES = WORDS.filter(lambda word: word.isprintable() and word == word.strip())
SUBJECTS = st.sampled_from(["_INBOX.a", "_INBOX.b", "acks.abc", "acks.a-c", "a.b.c.d."])
FLIPS = st.lists(st.tuples(st.integers(0, 400), st.integers(1, 255)), max_size=1)


def flipped(data: bytes, flips: Sequence[tuple[int, int]], *, order: Any) -> bytes:
    """Return the data with other bits, and nevertheless a right checksum."""
    changed = bytearray(data)
    for place, bits in flips:
        changed[place % len(changed)] ^= bits
        if len(changed) > 12 and 12 in changed[5:8]:
            changed[8:12] = crc32c(bytes(changed[12:])).to_bytes(4, order)
    return bytes(changed)


def with_text(data: bytes) -> bytes:
    """Return the data as a publisher packs them that confuses text and bytes."""
    fields = msgpack.unpackb(data[data[6] :])
    packed = msgpack.packb(
        {name: one.decode() if isinstance(one, bytes) else one for name, one in fields.items()}
    )
    if data[6] == 8:
        return data[:8] + packed
    return data[:8] + crc32c(packed).to_bytes(4, "little") + packed


@st.composite
def our_envelopes(draw: st.DrawFn) -> list[bytes]:
    names = draw(st.sets(st.sampled_from(["key", "correlation_id", "message_id", "ack_subject"])))
    rare = draw(
        st.sampled_from(
            [
                {},
                {},
                {},
                {"ack_policy": "none"},
                {"expected_last_offset": 3},
                {"headers": {"X": "y"}},
            ]
        )
    )
    tombstones = "key" in names and draw(st.booleans())
    as_text = draw(st.booleans())
    crc = draw(st.booleans())
    size = draw(st.sampled_from([3, 40, 300]))
    made = []
    for _ in range(draw(st.integers(1, 6))):
        fields: dict[str, Any] = dict(rare)
        fields["value"] = None if tombstones else draw(WORDS).encode() * (size // 3)
        for name in names:
            strategy = {"key": WORDS, "ack_subject": SUBJECTS}.get(name, LINES)
            fields[name] = draw(strategy)
        try:
            data = envelope.encode(**fields, crc=crc)
        except ValueError:
            continue
        if as_text:
            data = with_text(data)
        made.append(flipped(data, draw(FLIPS), order="little"))
    return made


@st.composite
def their_envelopes(draw: st.DrawFn) -> list[bytes]:
    names = draw(st.sets(st.sampled_from(["key", "correlation_id", "ack_inbox", "stream"])))
    rare = draw(
        st.sampled_from(
            [
                {},
                {},
                {},
                {"offset": 7},
                {"headers": {"X": b"y"}},
                {"ack_policy": 1},
                {"timestamp": 9},
            ]
        )
    )
    size = draw(st.sampled_from([3, 300]))
    crc = draw(st.booleans())
    made = []
    for _ in range(draw(st.integers(1, 6))):
        fields: dict[str, Any] = dict(rare)
        fields["value"] = draw(WORDS).encode() * (size // 3)
        for name in names:
            word = draw(WORDS)
            fields[name] = word.encode() if name == "key" else word
        data = liftbridge.encode_publish(Publish(**fields), crc=crc)
        made.append(flipped(data, draw(FLIPS), order="big"))
    return made


def of_one_length(envelopes: list[bytes]) -> list[bytes]:
    return [data for data in envelopes if len(data) == len(envelopes[0])]


def texts(column: Sequence[bytes] | None, rows: int) -> list[str | None]:
    return [None] * rows if column is None else [text.decode("ascii") for text in column]


def check_rows(found: Alike, count: int) -> int:
    assert list(found.rows) == sorted(set(found.rows))
    assert set(found.rows) <= set(range(count))
    columns = found[2:]
    assert all(column is None or len(column) == len(found.rows) for column in columns)
    return len(found.rows)


@settings(max_examples=3 * EXAMPLES)
@given(our_envelopes())
def test_ours(envelopes: list[bytes]) -> None:
    envelopes = of_one_length(envelopes)
    found = same_shape.ours(envelopes) if envelopes else None
    if found is None:
        return
    rows = check_rows(found, len(envelopes))
    example = envelope.decode(found.example)
    assert example is not None
    told = zip(
        found.rows,
        found.values or [None] * rows,
        found.keys or [None] * rows,
        texts(found.ack_subjects, rows),
        texts(found.correlation_ids, rows),
        texts(found.message_ids, rows),
        strict=True,
    )
    for row, value, key, ack_subject, correlation_id, message_id in told:
        assert envelope.decode(envelopes[row]) == example._replace(
            value=value,
            key=key,
            ack_subject=ack_subject,
            correlation_id=correlation_id,
            message_id=message_id,
        )
        assert not example.headers
        assert example.expected_last_offset is None


@settings(max_examples=3 * EXAMPLES)
@given(their_envelopes())
def test_liftbridges(envelopes: list[bytes]) -> None:
    envelopes = of_one_length(envelopes)
    found = same_shape.liftbridges(envelopes)
    if found is None:
        return
    rows = check_rows(found, len(envelopes))
    example = liftbridge.decode_publish(found.example)
    assert example is not None
    told = zip(
        found.rows,
        found.values or [b""] * rows,
        found.keys or [b""] * rows,
        texts(found.ack_subjects, rows),
        texts(found.correlation_ids, rows),
        strict=True,
    )
    for row, value, key, ack_inbox, correlation_id in told:
        assert liftbridge.decode_publish(envelopes[row]) == example._replace(
            value=value,
            key=key,
            ack_inbox=ack_inbox or "",
            correlation_id=correlation_id or "",
        )
        assert not example.headers


def test_what_a_publisher_sends_is_alike() -> None:
    ours = [
        envelope.encode(b"%07d" % n, key=b"k%d" % (n % 10), message_id=f"{n:05}", crc=n > 0)
        for n in range(1, 30)
    ]
    found = same_shape.ours(ours)
    assert found is not None
    assert len(found.rows) == 29
    ours[0] = ours[5][:-1] + b"!"  # a wrong checksum
    found = same_shape.ours(ours)
    assert found is not None
    assert list(found.rows) == list(range(1, 29))
    theirs = [
        liftbridge.encode_publish(
            Publish(value=b"%07d" % n, ack_inbox=f"_INBOX.{n:03}", correlation_id=f"{n:05}")
        )
        for n in range(20)
    ]
    found = same_shape.liftbridges(theirs)
    assert found is not None
    assert len(found.rows) == 20
    assert same_shape.ours(theirs) is same_shape.liftbridges(ours) is None


def test_a_bad_ack_subject_is_decoded_by_itself() -> None:
    good = [
        envelope.encode(b"v", ack_subject=f"_INBOX.{n:03}", correlation_id=f"{n:03}", crc=False)
        for n in range(20)
    ]
    for bad in (b"_INBOX.0.*", b"_INBOX.00.", b"$INBOX.000", b"_INBOX.0 0"):
        for row in (0, 7, 19):
            mixed = [*good]
            mixed[row] = mixed[row].replace(b"_INBOX.%03d" % row, bad)
            found = same_shape.ours(mixed)
            assert found is not None
            assert set(range(20)) - set(found.rows) == {row}
            assert envelope.decode(mixed[row]) is None


acks = st.builds(
    Ack,
    stream=st.sampled_from(["s", "s", "ü"]),
    msg_subject=st.sampled_from(["a", "a", "b"]),
    ack_inbox=st.sampled_from(["", "_INBOX.a", "_INBOX.b", "_INBOX.ü", "a b"]),
    correlation_id=st.sampled_from(["", "one", "two", "long", "a b"]),
    ack_policy=st.sampled_from([0, 0, 1]),
    reception_timestamp=st.sampled_from([0, 7, 10**18]),
    ack_error=st.sampled_from([0, 0, 3]),
)


@settings(max_examples=3 * EXAMPLES)
@given(
    st.one_of(
        st.lists(acks, min_size=1, max_size=5),
        st.tuples(acks, st.integers(1, 5)).map(lambda pair: [pair[0]] * pair[1]),
    ),
    st.sampled_from([0, 1, 120, 127, 16_380, 2**21 - 3, 2**40]),
    st.booleans(),
)
def test_acks_that_are_alike(many: list[Ack], first_offset: int, same: bool) -> None:
    if same:
        shared = many[0]
        many = [
            shared._replace(ack_inbox=ack.ack_inbox, correlation_id=ack.correlation_id)
            for ack in many
        ]
    offsets = range(first_offset, first_offset + len(many))
    found = liftbridge.encode_alike_acks(many, offsets, commit_timestamp=5)
    wanted = [*liftbridge.encode_acks(zip(many, offsets, strict=True), commit_timestamp=5)]
    if found is not None:
        size, columns = found
        assert [b"".join(pieces) for pieces in zip(*columns, strict=True)] == wanted
        assert {*map(len, wanted)} == {size}
    elif len({ack._replace(ack_inbox="", correlation_id="") for ack in many}) == 1:
        odd = "".join(ack.ack_inbox + ack.correlation_id for ack in many)
        lengths = {(len(a.ack_inbox), len(a.correlation_id)) for a in many}
        assert " " in odd or not odd.isascii() or len(lengths) > 1 or first_offset != 1


@settings(max_examples=2 * EXAMPLES)
@given(st.lists(acks, min_size=1, max_size=12), st.sampled_from([1, 120, 16_380]))
def test_acks_of_a_group_are_worded_as_one_by_one(many: list[Ack], first_offset: int) -> None:
    waiting = [
        (ack.ack_inbox.encode() or b"_INBOX.x", ack, first_offset + 2 * at)
        for at, ack in enumerate(many)
    ]
    wanted = [
        (reply, liftbridge.encode_ack(ack._replace(offset=offset, commit_timestamp=9)))
        for reply, ack, offset in waiting
    ]
    sent = ack_commands(waiting, 9)
    assert sent == publish_commands(wanted)
