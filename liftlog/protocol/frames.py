"""Frames: a u32 length, a msgpack map, and the raw bytes that the map announces.

     0   4  length          u32 little-endian, bytes of the map
     4      map             msgpack, string keys
     ..     body            `b` bytes, a field of the map (absent = 0)

The reader's memory is filled in place. `get_buffer()` returns the memory for the next bytes, and
the caller reports their arrival by `buffer_updated(n)`. Both `socket.recv_into` and
`asyncio.BufferedProtocol` work in this way. A body is received directly into the memory that the
caller gets. Only bytes of the body that arrived in the same read as the map are copied (at most one
small buffer).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import msgpack

from liftlog.errors import BadRequest, LimitExceeded
from liftlog.protocol.limits import MAX_ANSWER_VALUES, MAX_DEPTH

LENGTH = struct.Struct("<I")
BODY_LENGTH_KEY = "b"

_ARRAY16, _ARRAY32, _MAP16, _MAP32 = 0xDC, 0xDD, 0xDE, 0xDF
_BIN8, _STR8 = 0xC4, 0xD9
# Maps the first byte of a value to the number of bytes that its length takes.
_TEXT_LENGTHS = {0xC5: 2, 0xC6: 4, 0xDA: 2, 0xDB: 4}
_CONTAINER_LENGTHS = {_ARRAY16: 2, _ARRAY32: 4, _MAP16: 2, _MAP32: 4}
_MAPS = frozenset((*range(0x80, 0x90), _MAP16, _MAP32))
_SHORT_FRAME_BYTES = 512
_TEXT = frozenset({str})
_CONTAINERS = frozenset({dict, list})

_pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack


def encode_map(message: dict[str, Any]) -> bytes:
    """Encode the map of a frame; `decode_map` decodes it."""
    data: bytes = _pack(message)
    return data


def encode_frame(message: dict[str, Any]) -> bytes:
    """Encode a frame without its body."""
    data = encode_map(message)
    return LENGTH.pack(len(data)) + data


def decode_map(data: bytes | memoryview, max_values: int = MAX_ANSWER_VALUES) -> dict[str, Any]:
    """Decode the msgpack map of a frame, within limits. Raises BadRequest.

    `max_values` limits the number of values in all maps and arrays of the frame together.
    """
    data = bytes(data)
    # The decoder allocates memory by a declared length only for arrays of 16 entries or more. Most
    # short frames have no byte that could begin such an array.
    is_harmless = len(data) <= _SHORT_FRAME_BYTES and _ARRAY16 not in data and _ARRAY32 not in data
    if not is_harmless:
        _check_shape(data, max_values)
    try:
        decoded = msgpack.unpackb(data, raw=False, strict_map_key=True, max_ext_len=0)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise BadRequest(f"the frame is not a msgpack map within limits: {error}") from error
    if type(decoded) is not dict:
        raise BadRequest(f"the frame holds a msgpack {type(decoded).__name__}, not a map")
    if not _TEXT.issuperset(map(type, decoded)):
        raise BadRequest("the keys of the frame's map must be strings")
    if is_harmless and not _CONTAINERS.isdisjoint(map(type, decoded.values())):
        _check_depth(decoded, MAX_DEPTH)
    return decoded


def _check_depth(container: Any, left: int) -> None:
    if left == 0:
        raise BadRequest(f"the frame's map nests deeper than {MAX_DEPTH}")
    values = container.values() if type(container) is dict else container
    for value in values:
        if type(value) is dict or type(value) is list:
            _check_depth(value, left - 1)


def _fixed_sizes() -> tuple[int, ...]:
    """Return the size of a value for each first byte.

    0 means that further bytes give the size. A negative entry means that one byte of length
    follows.
    """
    sizes = [1] * 256
    sizes[0x80:0xA0] = [0] * 32  # fixmap, fixarray
    sizes[0xA0:0xC0] = range(1, 33)  # fixstr
    sizes[0xC4:0xCA] = [0] * 6  # bin, ext
    sizes[0xCA:0xD4] = (5, 9, 2, 3, 5, 9, 2, 3, 5, 9)  # float32, float64, uint, int
    sizes[0xD4:0xE0] = [0] * 12  # fixext, str, array, map
    sizes[_BIN8] = sizes[_STR8] = -1
    return tuple(sizes)


_FIXED_SIZES = _fixed_sizes()


def _check_shape(data: bytes, max_values: int) -> None:
    """Raise BadRequest for a map that must not reach the decoder, because the decoder allocates
    every array, at any depth, with its declared length before it has read an entry.

    Examines only the first bytes of each value, and at most `max_values` values. For a map that
    passes, the decoder needs at most a small multiple of the frame's bytes.
    """
    sizes, end = _FIXED_SIZES, len(data)
    position, pending, values_left = 0, 1, max_values
    open_until: list[int] = []  # for each open container, the value of `pending` at its end
    while pending:
        if position >= end:
            raise BadRequest("the frame's map declares more than the frame holds")
        first = data[position]
        size = sizes[first]
        if size:
            if size < 0:
                size = 2 + data[position + 1] if position + 1 < end else 2
            position += size
            pending -= 1
            continue
        position += 1
        width = _TEXT_LENGTHS.get(first)
        if width is not None:
            length = int.from_bytes(data[position : position + width], "big")
            position += width + length
            pending -= 1
            continue
        if first < 0xA0:
            entries = first & 0x0F
        elif (width := _CONTAINER_LENGTHS.get(first)) is not None:
            entries = int.from_bytes(data[position : position + width], "big")
            position += width
        else:
            raise BadRequest("the frame's map holds an extension type of msgpack")
        while open_until and pending <= open_until[-1]:
            open_until.pop()
        pending -= 1
        open_until.append(pending)
        if len(open_until) > MAX_DEPTH:
            raise BadRequest(f"the frame's map nests deeper than {MAX_DEPTH}")
        if first in _MAPS:
            entries *= 2
        pending += entries
        values_left -= entries
        if pending > end - position:
            raise BadRequest("the frame's map declares more than the frame holds")
        if values_left < 0:
            raise BadRequest(f"the frame's map holds more than {max_values} values")
    if position != end:
        raise BadRequest("the frame's map does not end where the frame does")


class Foreign(NamedTuple):
    """Another protocol that a peer uses by mistake."""

    name: str
    hint: str
    """The next step for the user, as a sentence."""


_HTTP = Foreign(
    "HTTP", "give the address of the pull port (pull.listen, usually 9292), not of http.listen"
)
_TLS = Foreign("TLS", "use tls:// on a port that speaks TLS, and tcp:// on one that does not")
_NATS = Foreign("NATS", "give the address of the daemon's pull port, not of the NATS server")
_SSH = Foreign("SSH", "check host and port")

_KNOWN = {
    **dict.fromkeys(
        (b"HTTP", b"GET ", b"POST", b"HEAD", b"PUT ", b"DELE", b"OPTI", b"PRI "), _HTTP
    ),
    **dict.fromkeys((b"INFO", b"-ERR", b"CONN"), _NATS),
    b"SSH-": _SSH,
}
_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")  # an alert, a handshake


def foreign_protocol(first: bytes) -> Foreign | None:
    """Return the protocol of a peer that does not use liftlog's protocol, by its first four bytes.
    As the length of a frame, these bytes would exceed every limit that applies before the login."""
    if first[:2] in _TLS_RECORDS and first[2] <= 4:
        return _TLS
    return _KNOWN.get(first)


def _allocate(length: int) -> memoryview:
    return memoryview(bytearray(length))


class FrameReader:
    """Splits a byte stream into maps and bodies. Not thread-safe; does no I/O.

    `next_event()` returns a dict, which is a whole map. If the map announced a body, the next call
    returns a memoryview: the whole body, in memory of its own. If more bytes are needed,
    `next_event()` returns None. It returns a map before the body of the map has arrived. After an
    error the reader stays failed.
    """

    __slots__ = (
        "_allocate",
        "_body",
        "_body_filled",
        "_buffer",
        "_end",
        "_length",
        "_start",
        "_usual_bytes",
        "_view",
        "frame_bytes",
        "grown_bytes",
        "max_body_bytes",
        "max_frame_bytes",
        "max_values",
    )

    def __init__(
        self,
        *,
        max_frame_bytes: int,
        max_body_bytes: int,
        max_values: int = MAX_ANSWER_VALUES,
        buffer_bytes: int = 16 * 1024,
        allocate: Callable[[int], memoryview] = _allocate,
    ) -> None:
        self.max_frame_bytes = max_frame_bytes
        self.max_body_bytes = max_body_bytes
        self.max_values = max_values
        self.frame_bytes = 0
        """Size of the frame whose map `next_event` returned last."""
        self.grown_bytes = 0
        """Memory that an incomplete frame takes beyond the usual buffer."""
        self._allocate = allocate
        self._usual_bytes = buffer_bytes
        self._buffer = bytearray(buffer_bytes)
        self._view = memoryview(self._buffer)
        self._start = 0  # first byte not consumed
        self._end = 0  # first byte not received
        self._length = -1  # length of the map that begins at _start, once it has arrived
        self._body: memoryview | None = None
        self._body_filled = 0

    @property
    def mid_frame(self) -> bool:
        """True if a part of a frame has arrived."""
        return self._body is not None or self._end > self._start

    @property
    def arriving_body(self) -> memoryview | None:
        """The memory of the body that is arriving; its first `arrived_bytes` are valid; None if no
        body is arriving."""
        return self._body

    @property
    def arrived_bytes(self) -> int:
        return self._body_filled

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        """Return the memory for the next bytes to receive; never empty."""
        body = self._body
        if body is not None and self._body_filled < len(body):
            return body[self._body_filled :]
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end == len(self._buffer) or (
            self._start and self._needed() > len(self._buffer) - self._start
        ):
            self._make_room()
        return self._view[self._end :]

    def clear(self) -> None:
        """Drop the bytes that have arrived, and memory beyond the usual buffer."""
        self._buffer = bytearray(self._usual_bytes)
        self._view = memoryview(self._buffer)
        self._start = self._end = self.grown_bytes = 0

    def _needed(self) -> int:
        return LENGTH.size + max(self._length, 0)

    def _make_room(self) -> None:
        """Move the incomplete frame to the front of the buffer, or of a larger buffer if the
        present one is full.

        The buffer grows as bytes arrive, regardless of the announced length, because a peer that
        sends only four bytes must not cause the allocation of a whole frame.
        """
        pending = bytes(self._view[self._start : self._end])
        if len(pending) == len(self._buffer):
            # Or the buffer holds whole frames that the owner has not taken yet, because it makes
            # its peer wait.
            size, needed = 2 * len(self._buffer), self._needed()
            if len(self._buffer) < needed < size:
                size = needed
            self._buffer = bytearray(size)
            self._view = memoryview(self._buffer)
            self.grown_bytes = size - self._usual_bytes
        self._view[: len(pending)] = pending
        self._start, self._end = 0, len(pending)

    def buffer_updated(self, received: int) -> None:
        """Process `received` bytes, which were written to the beginning of the last
        `get_buffer()`."""
        body = self._body
        if body is not None and self._body_filled < len(body):
            self._body_filled += received
        else:
            self._end += received

    def next_event(self) -> dict[str, Any] | memoryview | None:
        """Return a map, a body, or None. After LimitExceeded or BadRequest the reader stays
        failed."""
        body = self._body
        if body is not None:
            if self._body_filled < len(body):
                return None
            self._body = None
            return body
        available = self._end - self._start
        if self._length < 0:
            if available < LENGTH.size:
                return None
            (length,) = LENGTH.unpack_from(self._buffer, self._start)
            if length > self.max_frame_bytes:
                prefix = bytes(self._view[self._start : self._start + LENGTH.size])
                if (foreign := foreign_protocol(prefix)) is not None:
                    raise BadRequest(
                        f"the bytes {prefix!r} look like {foreign.name}, not like the pull "
                        "protocol",
                        hint=foreign.hint,
                    )
                raise LimitExceeded(
                    f"a frame of {length} bytes is longer than the limit of {self.max_frame_bytes}",
                    limit=self.max_frame_bytes,
                )
            self._length = length
        first = self._start + LENGTH.size
        last = first + self._length
        if last > self._end:
            return None
        decoded = decode_map(self._view[first:last], self.max_values)
        self.frame_bytes = last - self._start
        self._start = last
        self._length = -1
        if last == self._end and len(self._buffer) > self._usual_bytes:
            self.clear()  # a long frame must not keep its memory allocated forever
        if BODY_LENGTH_KEY in decoded:
            self._expect_body(decoded[BODY_LENGTH_KEY])
        return decoded

    def _expect_body(self, length: Any) -> None:
        if type(length) is not int or length < 0:
            raise BadRequest("the body length `b` must be an unsigned integer")
        if length > self.max_body_bytes:
            raise LimitExceeded(
                f"a body of {length} bytes is longer than the limit of {self.max_body_bytes}",
                limit=self.max_body_bytes,
            )
        if length == 0:
            return
        body = self._allocate(length)
        here = min(length, self._end - self._start)
        body[:here] = self._view[self._start : self._start + here]
        self._start += here
        self._body = body
        self._body_filled = here
