"""Numbers as bytes, and back, for deltas and snapshots.

A single number is a LEB128 varint of 7 bits per byte, the lowest first; a signed one is folded so
that small negative numbers are short, too (0, -1, 1, -2 ...). A column of numbers is

    count   varint; nothing follows a count of 0
    form    1 byte
    first   signed varint; the first number. Not in the form WHOLE
    rest    EVEN      the difference of all neighbours, a signed varint
            WHOLE     the numbers, 8 bytes each, little-endian
            1, 2, 4   the differences, unsigned and of this width in bytes, little-endian
            -1 ...    the same, signed; the byte of the form is 256 lower
"""

from __future__ import annotations

import numpy as np

from liftlog.deliveries.columns import NO_INTS, Ints
from liftlog.errors import CorruptState

MAX_OFFSET = MAX_TIME_NS = 2**62
"""Maximum of an offset, and of a time in ns since 1970. This time is in the year 2116. Adding a
length or a wait to it does not overflow."""

EVEN, WHOLE = 0, 8
_MAX = 2**63 - 1
_SAFE = 2**61
"""Columns of numbers up to this limit are stored as differences. The sums of such differences do
not overflow."""
_FORMS = {1: "<u1", 2: "<u2", 4: "<u4", 255: "<i1", 254: "<i2", 252: "<i4"}
_RISING = ((2**8, 1), (2**16, 2), (2**32, 4))
_MIXED = ((2**7, 255), (2**15, 254), (2**31, 252))


class Writer:
    def __init__(self, version: int) -> None:
        self._data = bytearray((version,))

    def done(self) -> bytes:
        return bytes(self._data)

    def number(self, value: int) -> None:
        """Add a number that is not negative."""
        while value > 0x7F:
            self._data.append(value & 0x7F | 0x80)
            value >>= 7
        self._data.append(value)

    def signed(self, value: int) -> None:
        self.number(value << 1 if value >= 0 else (-value << 1) - 1)

    def raw(self, value: bytes) -> None:
        self.number(len(value))
        self._data += value

    def rising(self, numbers: Ints) -> None:
        """Add a column of numbers in ascending order without repeats."""
        count = len(numbers)
        first, last = (int(numbers[0]), int(numbers[-1])) if count else (0, 0)
        if not count or last - first != count - 1 or last > _SAFE:
            self.column(numbers)
            return
        self.number(count)
        self._data.append(EVEN)
        self.signed(first)
        self.signed(1 if count > 1 else 0)

    def column(self, numbers: Ints) -> None:
        count = len(numbers)
        self.number(count)
        if not count:
            return
        first = int(numbers[0])
        if max(abs(int(numbers.min())), abs(int(numbers.max()))) > _SAFE:
            self._whole(numbers)
            return
        steps = np.diff(numbers)
        low, high = (int(steps.min()), int(steps.max())) if count > 1 else (0, 0)
        if low == high:
            self._data.append(EVEN)
            self.signed(first)
            self.signed(low)
            return
        choices = [form for limit, form in _RISING if low >= 0 and high < limit]
        choices += [form for limit, form in _MIXED if -limit <= low and high < limit]
        if not choices:
            self._whole(numbers)
            return
        self._data.append(choices[0])
        self.signed(first)
        self._data += steps.astype(_FORMS[choices[0]]).tobytes()

    def _whole(self, numbers: Ints) -> None:
        self._data.append(WHOLE)
        self._data += numbers.astype("<i8").tobytes()


class Reader:
    """Reads numbers and columns from bytes. Methods raise CorruptState if the bytes are invalid or
    too short."""

    def __init__(self, data: bytes, most_numbers: int) -> None:
        """Limit all columns together to `most_numbers` numbers, because few bytes can encode many
        numbers."""
        self._data = data
        self._at = 0
        self._left = most_numbers

    @property
    def is_at_end(self) -> bool:
        return self._at == len(self._data)

    def byte(self) -> int:
        if self._at >= len(self._data):
            raise CorruptState("the data ends too early")
        self._at += 1
        return self._data[self._at - 1]

    def number(self, most: int = _MAX) -> int:
        """Return a number from 0 to `most`."""
        data, at = self._data, self._at
        value = shift = 0
        try:
            while (byte := data[at]) > 0x7F:
                value |= (byte & 0x7F) << shift
                at += 1
                shift += 7
                if shift > 63:
                    raise CorruptState("a number is too long")
        except IndexError:
            raise CorruptState("the data ends too early") from None
        value |= byte << shift
        self._at = at + 1
        if value > most:
            raise CorruptState(f"expected a number up to {most}, found {value}")
        return value

    def signed(self) -> int:
        folded = self.number(2 * _MAX + 1)
        return folded >> 1 if not folded & 1 else -(folded + 1 >> 1)

    def raw(self) -> bytes:
        return self._take(self.number())

    def text(self) -> str:
        try:
            return self.raw().decode()
        except UnicodeDecodeError as error:
            raise CorruptState("a text is not in UTF-8") from error

    def column(self, most: int = _MAX) -> Ints:
        """Return up to `most` numbers."""
        count = self.number(min(most, self._left))
        self._left -= count
        if not count:
            return NO_INTS
        form = self.byte()
        if form == WHOLE:
            return np.frombuffer(self._take(8 * count), "<i8").astype(np.int64)
        first = self.signed()
        if form == EVEN:
            step = self.signed()
            last = first + step * (count - 1)
            if max(abs(first), abs(last)) > _SAFE or abs(step) > 2 * _SAFE:
                raise CorruptState("numbers of a column are too large")
            return first + step * np.arange(count, dtype=np.int64)
        if form not in _FORMS or abs(first) > _SAFE:
            raise CorruptState(f"a column of the form {form} from {first} on")
        width = np.dtype(_FORMS[form]).itemsize
        steps = np.frombuffer(self._take(width * (count - 1)), _FORMS[form])
        numbers = np.empty(count, np.int64)
        numbers[0] = first
        np.cumsum(steps, out=numbers[1:])
        numbers[1:] += first
        return numbers

    def _take(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise CorruptState("the data ends too early")
        self._at += size
        return self._data[self._at - size : self._at]
