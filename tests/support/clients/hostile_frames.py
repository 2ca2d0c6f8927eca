"""Msgpack that needs far more memory than its size when it is decoded: shapes for tests of all
readers of frames."""

from __future__ import annotations

import struct


def _filled(pattern: bytes, size: int) -> bytes:
    return (pattern * (size // len(pattern) + 1))[:size]


def _wide(entry: bytes, size: int) -> bytes:
    """Return a well-formed map with one key, whose value has as many entries as fit."""
    room, arrays = size - 16, []
    while room > 3:
        count = min((room - 3) // len(entry), 0xFFFF)
        arrays.append(b"\xdc" + struct.pack(">H", count) + entry * count)
        room -= len(arrays[-1]) + 3
    return b"\x81\xa1k\xdc" + struct.pack(">H", len(arrays)) + b"".join(arrays)


def hostile_maps(size: int) -> dict[str, bytes]:
    """Return the maps by name. Each has about `size` bytes."""
    found = {
        f"arrays of {count} in arrays": _filled(b"\xdc" + struct.pack(">H", count), size)
        for count in (16, 256, 1000, 2000, 4000, 0xFFFF)
    }
    for name, pattern in {
        "arrays of 4 G in arrays": b"\xdd\xff\xff\xff\xff",
        "arrays of 64 Ki in arrays": b"\xdd\x00\x01\x00\x00",
        "short arrays in arrays": b"\x9f",
        "arrays of one in arrays": b"\x91",
        "maps of 4 G in maps": b"\xdf\xff\xff\xff\xff\xa1k",
        "maps of 64 Ki in maps": b"\xde\xff\xff\xa1k",
        "maps of one in maps": b"\x81\xa1k",
        "arrays in maps": b"\x81\xa1k\xdc\x0f\xa0",
    }.items():
        found[name] = _filled(pattern, size)
        found[f"{name}, below a key"] = b"\x81\xa1k" + _filled(pattern, size - 3)
    for name, start in {
        "an array of 4 G": b"\xdd\xff\xff\xff\xff",
        "a map of 4 G": b"\xdf\xff\xff\xff\xff",
        "text of 4 GiB": b"\xdb\xff\xff\xff\xff",
        "bytes of 4 GiB": b"\xc6\xff\xff\xff\xff",
        "an extension of 4 GiB": b"\xc9\xff\xff\xff\xff\x01",
        "an extension": b"\xd4\x01\x00",
    }.items():
        found[name] = b"\x81\xa1k" + start + bytes(size - 3 - len(start))
    for name, entry in {
        "many nils": b"\xc0",
        "many empty arrays": b"\x90",
        "many empty maps": b"\x80",
        "many arrays of one": b"\x91\x90",
        "many short texts": b"\xa2ab",
        "many numbers": b"\xcd\xff\xff",
    }.items():
        found[name] = _wide(entry, size)
    return found
