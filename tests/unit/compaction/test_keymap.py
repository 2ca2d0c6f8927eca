"""The key map: exact, bounded, and small."""

import tracemalloc

import numpy as np
import pytest
from numpy.typing import NDArray
from support.worlds.compaction_model import column

from compaction.keymap import KeyMap
from compaction.keys import KeyColumn, KeyedHash, Words

LARGE = 1 << 20


def offsets(first: int, count: int) -> NDArray[np.int64]:
    return np.arange(first, first + count, dtype=np.int64)


def numbered(first: int, count: int, digits: int = 11) -> KeyColumn:
    return column([b"%0*d" % (digits, i) for i in range(first, first + count)])


def test_newest_offset_of_each_key() -> None:
    keys = KeyMap(LARGE)
    assert keys.add(column([b"a", b"b", None, b"a", b""]), offsets(1000, 5)) == 5
    assert len(keys) == 3
    asked = column([b"a", b"b", b"", b"c", None], noise=b"zz")
    assert keys.newest(asked).tolist() == [1003, 1001, 1004, -1, -1]
    keys.add(column([b"b"]), offsets(2000, 1))
    assert keys.newest(asked).tolist() == [1003, 2000, 1004, -1, -1]


def test_an_empty_map_knows_nothing() -> None:
    keys = KeyMap(LARGE)
    assert keys.newest(column([b"a", None])).tolist() == [-1, -1]
    assert keys.add(column([]), offsets(1, 0)) == 0
    assert keys.add(column([None, None]), offsets(1, 2)) == 2
    assert len(keys) == 0
    with pytest.raises(ValueError, match="greater than 0"):
        KeyMap(0)


def test_keys_that_differ_only_in_length_or_padding() -> None:
    tricky = [b"", b"\0", b"\0\0", b"\1", b"\1\0", b"\0\1", b"\0\0\0\0", b"\0\0\0\1", b"\1\0\0\0"]
    tricky += [b"a" * n for n in range(1, 40)] + [b"a" * n + b"\1" for n in range(1, 40)]
    tricky += [b"x" * 1000, b"x" * 999 + b"y", b"x" * 65_535]
    keys = KeyMap(LARGE)
    assert keys.add(column(tricky), offsets(5, len(tricky))) == len(tricky)
    assert len(keys) == len(tricky)
    assert keys.newest(column(tricky)).tolist() == list(range(5, 5 + len(tricky)))


def same_for_all(words: Words) -> NDArray[np.uint64]:
    return np.zeros(len(words), np.uint64)


def one_of_three(words: Words) -> NDArray[np.uint64]:
    """The same slots at the end of the table, so that probing wraps around."""
    return (words.sum(axis=1, dtype=np.uint64) % np.uint64(3)) | np.uint64(0xFFFF_FFFF << 32)


@pytest.mark.parametrize("hash_words", [same_for_all, one_of_three])
def test_colliding_hashes_confuse_no_keys(hash_words: object) -> None:
    keys = KeyMap(LARGE, hash_words=hash_words)  # type: ignore[arg-type]
    asked = numbered(0, 400)
    for first in range(0, 400, 50):
        keys.add(numbered(first, 50), offsets(first, 50))
    keys.add(numbered(100, 7), offsets(500, 7))
    expected = list(range(400))
    expected[100:107] = range(500, 507)
    assert len(keys) == 400
    assert keys.newest(asked).tolist() == expected
    assert keys.newest(numbered(400, 30)).tolist() == [-1] * 30


def test_memory_is_bounded_and_a_prefix_is_taken() -> None:
    limit = 64 * 1024
    keys = KeyMap(limit)
    taken = keys.add(numbered(0, 10_000), offsets(1, 10_000))
    assert 64 * 1024 / 32 < taken < 64 * 1024 / 20
    assert len(keys) == taken
    assert keys.memory_used_bytes <= limit
    # Known keys need no memory; the first unknown one ends it, whatever follows.
    again = column([b"%011d" % i for i in (0, 1, taken, 2)])
    assert keys.add(again, offsets(20_000, 4)) == 2
    assert keys.newest(again).tolist() == [20_000, 20_001, -1, 3]


def test_one_key_is_always_taken() -> None:
    keys = KeyMap(1)
    assert keys.add(column([None, b"k" * 5000, b"b", None]), offsets(6, 4)) == 2
    assert keys.add(column([b"k" * 5000, b"b"]), offsets(8, 2)) == 1
    assert keys.newest(column([b"k" * 5000, b"b"])).tolist() == [8, -1]


def test_offsets_too_far_apart_for_32_bits_are_left() -> None:
    keys = KeyMap(LARGE)
    far = np.array([10, 10 + 0xFFFF_FFFF, 10 + 0x1_0000_0000], np.int64)
    assert keys.add(column([b"a", b"b", b"c"]), far) == 2
    assert keys.newest(column([b"a", b"b", b"c"])).tolist() == [10, 10 + 0xFFFF_FFFF, -1]


def test_an_eleven_byte_key_takes_at_most_32_bytes() -> None:
    count, step = 200_000, 20_000
    columns = [numbered(first, step) for first in range(0, count, step)]
    keys = KeyMap(16 << 20)
    tracemalloc.start()
    try:
        for i, keys_of_step in enumerate(columns):
            assert keys.add(keys_of_step, offsets(i * step, step)) == step
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(keys) == count
    assert keys.memory_used_bytes / count <= 32
    # With what a call needs for a moment, whatever the size of the map.
    assert peak <= 32 * count + 4 * 1024 * 1024


def test_hashes_depend_on_secret_and_on_every_word() -> None:
    words = np.arange(40, dtype=np.uint32).reshape(4, 10)
    first, second = KeyedHash(b"one"), KeyedHash(b"two")
    assert first(words).tolist() == KeyedHash(b"one")(words).tolist()
    assert not set(first(words).tolist()) & set(second(words).tolist())
    hashes = {int(first(words)[0])}
    for place in range(10):
        changed = words.copy()
        changed[0, place] ^= 0x8000_0000
        hashes.add(int(first(changed)[0]))
    assert len(hashes) == 11
    # Long keys need more secret numbers; those of short keys stay the same.
    before = first(words)
    first(np.zeros((1, 20_000), np.uint32))
    assert first(words).tolist() == before.tolist()


def test_hashes_are_spread_evenly() -> None:
    keys = np.zeros((65_536, 3), np.uint32)
    keys[:, 1] = np.arange(65_536)
    homes = (KeyedHash(b"any")(keys) >> np.uint64(48)).astype(np.int64)
    counts = np.bincount(homes, minlength=65_536)
    # As balls thrown into as many bins: e^-1 of them stay empty, none gets many.
    assert abs((counts == 0).mean() - 0.3679) < 0.02
    assert counts.max() < 12
