"""Columns of a block. Contiguous or equal numbers are stored without an array."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Index = NDArray[np.intp]
Bools = NDArray[np.bool_]

MAX_SPAN = 2**32
"""The numbers of a rising column differ by less than this value."""

NO_INTS: Ints = np.empty(0, np.int64)
NO_INTS.setflags(write=False)


def repeated(value: int, count: int) -> Ints:
    """Return a column of equal numbers."""
    column = np.empty(count, np.int64)
    column.fill(value)
    return column


def is_run(numbers: Ints | Index) -> bool:
    """Return True if rising numbers are contiguous."""
    return len(numbers) == 0 or int(numbers[-1]) - int(numbers[0]) + 1 == len(numbers)


class Rising:
    """Numbers in ascending order without repeats. The column stores contiguous numbers as `base`
    and `count`, and other numbers as an array of their differences to `base`, 4 bytes each."""

    __slots__ = ("_steps", "base", "count")

    def __init__(self, numbers: Ints) -> None:
        """`numbers` must not be empty. Raises ValueError if the last minus the first is MAX_SPAN or
        more."""
        self.base = int(numbers[0])
        self.count = len(numbers)
        self._steps: NDArray[np.uint32] | None = None
        if not is_run(numbers):
            self._steps = self._relative(numbers)

    @property
    def last(self) -> int:
        if self._steps is None:
            return self.base + self.count - 1
        return self.base + int(self._steps[-1])

    @property
    def is_contiguous(self) -> bool:
        return self._steps is None

    @property
    def limit(self) -> int:
        """The first number that is too far from the base to be appended."""
        return self.base + MAX_SPAN

    def fits(self, number: int) -> bool:
        """Return True if `number` can be appended."""
        return self.last < number < self.limit

    def continues(self, number: int) -> bool:
        """Return True if all numbers are contiguous, and `number` follows the last one."""
        return self._steps is None and number == self.base + self.count

    def append(self, numbers: Ints) -> None:
        """Append numbers above `last`. Raises ValueError if the column then spans MAX_SPAN or
        more."""
        if self._steps is None and numbers[0] == self.base + self.count and is_run(numbers):
            self.count += len(numbers)
            return
        steps = self._steps
        if steps is None:
            steps = np.arange(self.count, dtype=np.uint32)
        self._steps = np.concatenate((steps, self._relative(numbers)))
        self.count += len(numbers)

    def all(self) -> Ints:
        if self._steps is None:
            return np.arange(self.base, self.base + self.count, dtype=np.int64)
        return self._steps.astype(np.int64) + self.base

    def at(self, index: Index) -> Ints:
        found = index if self._steps is None else self._steps[index]
        return found.astype(np.int64) + self.base

    def one(self, index: int) -> int:
        return self.base + (index if self._steps is None else int(self._steps[index]))

    def find(self, numbers: Ints) -> tuple[Index, Bools]:
        """Return the index of each number, and a mask of the numbers that the column contains. The
        index of an absent number is valid but arbitrary."""
        relative = numbers - self.base
        if self._steps is None:
            is_here = (relative >= 0) & (relative < self.count)
            return np.where(is_here, relative, 0), is_here
        is_near = (relative >= 0) & (relative < MAX_SPAN)
        # Both arrays have one type: otherwise numpy would copy the whole column to search it for
        # wider numbers.
        near = np.where(is_near, relative, 0).astype(np.uint32)
        places = self._steps.searchsorted(near)
        places[places == self.count] = 0
        return places, is_near & (self._steps[places] == near)

    def place(self, number: int) -> int:
        """Return the index of one number; -1 if it is absent."""
        relative = number - self.base
        if not 0 <= relative < MAX_SPAN:
            return -1
        if self._steps is None:
            return relative if relative < self.count else -1
        place = int(self._steps.searchsorted(np.uint32(relative)))
        return place if place < self.count and self._steps[place] == relative else -1

    def take(self, index: Index) -> Rising:
        """Return a column of the numbers at the indices `index`, which ascend."""
        return Rising(self.at(index))

    def size_bytes(self) -> int:
        return 0 if self._steps is None else self._steps.nbytes

    def _relative(self, numbers: Ints) -> NDArray[np.uint32]:
        if not self.base <= int(numbers[-1]) < self.limit:
            raise ValueError("numbers of a column are too far apart")
        return (numbers - self.base).astype(np.uint32)


class Values:
    """One value per message. The column stores a single value while all values are equal, and an
    array of `dtype` otherwise."""

    __slots__ = ("_array", "_dtype", "_same")

    def __init__(self, dtype: Any, same: int = 0, array: NDArray[Any] | None = None) -> None:
        self._dtype = dtype
        self._same = same
        self._array = array

    @property
    def same(self) -> int | None:
        """The value that all messages have; None if their values may differ."""
        return self._same if self._array is None else None

    def at(self, index: Index) -> Ints:
        if self._array is None:
            return np.full(len(index), self._same, np.int64)
        return self._array[index].astype(np.int64, copy=False)

    def one(self, place: int) -> int:
        return self._same if self._array is None else int(self._array[place])

    def fill(self, value: int) -> None:
        self._same, self._array = value, None

    def put(self, index: Index, values: Ints | int, size: int) -> None:
        """Set the values at `index`. The block has `size` messages."""
        if len(index) == size and isinstance(values, int):
            self.fill(values)
            return
        if self._array is None:
            if isinstance(values, int) and values == self._same:
                return
            self._array = np.full(size, self._same, self._dtype)
        self._array[index] = values

    def append(self, size: int, value: int, count: int) -> None:
        """Add `value` for `count` more messages to a block of `size`."""
        if self._array is None:
            if value == self._same:
                return
            self._array = np.full(size, self._same, self._dtype)
        self._array = np.concatenate((self._array, np.full(count, value, self._dtype)))

    def take(self, index: Index) -> Values:
        """Return the values at `index`; stored as a single value if all are equal."""
        if self._array is None:
            return Values(self._dtype, self._same)
        found = self._array[index]
        if len(found) and bool((found == found[0]).all()):
            return Values(self._dtype, int(found[0]))
        return Values(self._dtype, 0, found)

    def joined(self, size: int, other: Values, other_size: int) -> Values:
        """Return the values of a block of `size`, followed by the values of another block."""
        if self._array is None and other.same == self._same:
            return Values(self._dtype, self._same)
        return Values(self._dtype, 0, np.concatenate((self._whole(size), other._whole(other_size))))

    def size_bytes(self) -> int:
        return 0 if self._array is None else self._array.nbytes

    def _whole(self, size: int) -> NDArray[Any]:
        return np.full(size, self._same, self._dtype) if self._array is None else self._array
