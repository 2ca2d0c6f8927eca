"""Selects records of a batch, and columns of these records.

Works on numpy columns (column_set.py), so no Python code runs per record. This module imports
numpy, so a client does not import it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from acl import subjects as patterns
from liftlog.errors import InvalidArgument
from liftlog.records.columns.column_set import (
    NO_SUBJECT,
    BinaryColumn,
    Bytes,
    Columns,
    Flags,
    Offsets,
)
from liftlog.records.columns.slots import WantedSlots, slots_of

OFFSET, TIMESTAMP, SUBJECT = "offset", "timestamp", "subject"
KEY, HEADERS, VALUE = "key", "headers", "value"
ALL_COLUMNS = frozenset((OFFSET, TIMESTAMP, SUBJECT, KEY, HEADERS, VALUE))

_CR, _LF, _COLON = b"\r\n:"
_BLANKS = b" \t"
_LOWER = np.frombuffer(bytes(range(256)).lower(), np.uint8)


class WantedHeader(NamedTuple):
    """A wanted header line: its name in lower case, and its value. The value None matches every
    value."""

    name: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Selection:
    """The conditions and columns of a reader.

    A record must meet all conditions that are not None; it must match one of the subjects and one
    of the keys. `parse_selection` creates selections and checks its arguments. `readable` is a
    second condition on subjects. It comes from the reader's permissions and not from its request.
    `values` is a condition on the values of records that meet the other conditions; it does not
    come from a request of the pull protocol.
    """

    subjects: tuple[str, ...] | None = None
    keys: tuple[bytes, ...] | None = None
    headers: tuple[WantedHeader, ...] | None = None
    columns: frozenset[str] = ALL_COLUMNS
    readable: tuple[str, ...] | None = None
    values: Callable[[BinaryColumn], Flags] | None = None
    slots: WantedSlots | None = None

    @property
    def without_slots(self) -> Selection:
        """Return the selection without the condition on slots, for records that already meet this
        condition."""
        return replace(self, slots=None)

    @property
    def is_projection(self) -> bool:
        """True if all records are wanted."""
        conditions = (
            self.subjects,
            self.keys,
            self.headers,
            self.readable,
            self.values,
            self.slots,
        )
        return all(condition is None for condition in conditions)

    def matching(self, records: Columns) -> Flags | None:
        """Return True for each wanted record; None if all records are wanted."""
        found: Flags | None = None
        if self.slots is not None:
            found = self.slots.flags.take(slots_of(records, self.slots.slot_count))
        if self.readable is not None:
            found = _and(found, _subjects_match(records, self.readable))
        if self.subjects is not None:
            found = _and(found, _subjects_match(records, self.subjects))
        if self.keys is not None and (found is None or found.any()):
            found = _and(found, _keys_match(records, self.keys))
        for header in self.headers or ():
            if found is None or found.any():
                found = _and(found, _header_matches(records, header))
        if self.values is not None:
            found = self._values_match(records, self.values, found)
        return found

    def _values_match(
        self,
        records: Columns,
        condition: Callable[[BinaryColumn], Flags],
        candidates: Flags | None,
    ) -> Flags:
        if candidates is None or candidates.all():
            return condition(records.values)
        chosen = np.flatnonzero(candidates)
        found = np.zeros(len(records), np.bool_)
        if len(chosen):
            found[chosen] = condition(records.values.take(chosen))
        return found

    def of(self, records: Columns) -> Columns:
        """Return the wanted columns of the wanted records."""
        mask = self.matching(records)
        projected = self.project(records)
        return projected if mask is None else projected.take(mask)

    def project(self, records: Columns) -> Columns:
        """Return the same records without the columns that were not requested.

        Offsets and tombstone marks always stay, because a record without a value and without a mark
        could look like a tombstone.
        """
        left_out = ALL_COLUMNS - self.columns
        if not left_out:
            return records
        changes: dict[str, Any] = {}
        if TIMESTAMP in left_out:
            changes["timestamps_ns"] = np.zeros(len(records), np.int64)
        if SUBJECT in left_out:
            changes |= {"subjects": NO_SUBJECT, "subject_ids": None}
        if KEY in left_out:
            changes["keys"] = None
        if HEADERS in left_out:
            changes["headers"] = None
        if VALUE in left_out:
            nothing = np.zeros(len(records) + 1, np.int32)
            changes["values"] = BinaryColumn(nothing, np.empty(0, np.uint8), records.values.valid)
        return replace(records, **changes)


# --- parsing a client's request ---


def parse_selection(
    *,
    subjects: Sequence[str] | None = None,
    keys: Sequence[bytes] | None = None,
    headers: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    readable: tuple[str, ...] | None = None,
    slots: Sequence[int] | None = None,
    slot_count: int | None = None,
    wrong_subject: Callable[[str], str | None] = patterns.why_invalid,
) -> Selection:
    """Check the arguments and return a Selection.

    Raises InvalidArgument for an invalid pattern, header or column, for an empty list, and for a
    slot that is not below the slot count. `readable` contains valid patterns; an empty tuple
    matches no subject. `wrong_subject` returns the problem of a pattern of `subjects`, or None.
    """
    lists = (("subjects", subjects), ("keys", keys), ("headers", headers), ("slots", slots))
    for name, given in lists:
        if given is not None and not given:
            raise InvalidArgument(
                f"a filter with an empty list of {name} matches nothing", hint="leave it out"
            )
    for pattern in subjects or ():
        wrong = wrong_subject(pattern)
        if wrong is not None:
            raise InvalidArgument(f"{pattern!r} is not a subject pattern: {wrong}")
    return Selection(
        None if subjects is None else tuple(subjects),
        None if keys is None else tuple(dict.fromkeys(keys)),
        None if headers is None else tuple([parse_header_condition(one) for one in headers]),
        ALL_COLUMNS if columns is None else _check_columns(columns),
        readable,
        slots=None if slots is None else _check_slots(slots, slot_count),
    )


def parse_header_condition(text: str) -> WantedHeader:
    """Parse `Name` or `Name=value`. Raises InvalidArgument."""
    name, equals, value = text.partition("=")
    raw = name.encode("utf-8", "surrogatepass")
    if not raw or any(byte <= 0x20 or byte == 0x7F or byte == _COLON for byte in raw):
        raise InvalidArgument(
            f"{name!r} is not the name of a header",
            hint="write Name, or Name=value; no blanks, control characters or colons in the name",
        )
    if "\r\n" in value:
        raise InvalidArgument("the value of a header is one line")
    wanted = value.encode("utf-8", "surrogatepass").strip(_BLANKS)
    return WantedHeader(raw.lower(), wanted if equals else None)


def _check_columns(columns: Iterable[str]) -> frozenset[str]:
    wanted = frozenset(columns)
    unknown = sorted(wanted - ALL_COLUMNS)
    if unknown or not wanted:
        raise InvalidArgument(
            f"there is no column {unknown[0]!r}" if unknown else "no column was requested",
            hint=f"choose from {', '.join(sorted(ALL_COLUMNS))}",
        )
    return wanted


def _check_slots(slots: Sequence[int], count: int | None) -> WantedSlots:
    if count is None or not 0 <= min(slots) <= max(slots) < count:
        raise InvalidArgument(f"the slots {min(slots)} to {max(slots)} are not among {count or 0}")
    return WantedSlots(count, tuple(sorted(set(slots))))


# --- conditions ---


def _and(one: Flags | None, other: Flags) -> Flags:
    return other if one is None else one & other


def _none_of(records: Columns) -> Flags:
    return np.zeros(len(records), np.bool_)


@lru_cache(maxsize=64)
def _regex_of(wanted: tuple[str, ...]) -> re.Pattern[str]:
    """Return a regex that matches the same subjects as `acl.subjects.matches` with these
    patterns."""
    tokens = {"*": r"[^.]+", ">": r"[^.]+(?:\.[^.]+)*"}
    ways = [
        r"\.".join([tokens.get(token) or re.escape(token) for token in pattern.split(".")])
        for pattern in wanted
    ]
    return re.compile("|".join(ways))


def matching_all(patterns: Sequence[tuple[str, ...]]) -> Callable[[bytes], bool]:
    """Return a function that tests if a stored subject matches one pattern of each tuple."""

    def matches(raw: bytes) -> bool:
        name = raw.decode("utf-8", "replace")
        return all(some and _regex_of(some).fullmatch(name) is not None for some in patterns)

    return matches


def _subjects_match(records: Columns, wanted: tuple[str, ...]) -> Flags:
    if not wanted:
        return _none_of(records)  # an empty expression would match an empty subject
    # Patterns are compared with the escaped text of escaped entries, which readers get.
    names = [raw.decode("utf-8", "replace") for raw, _ in records.subjects]
    reaches = _regex_of(wanted).fullmatch
    matched = [reaches(name) is not None for name in names]
    if records.subject_ids is None:
        return np.full(len(records), bool(matched and matched[0]))
    found: Flags = np.array(matched, np.bool_)[records.subject_ids]
    return found


def _keys_match(records: Columns, wanted: Sequence[bytes]) -> Flags:
    found = _none_of(records)
    keys = records.keys
    if keys is None:
        return found
    lengths = np.diff(keys.ends)
    by_length: dict[int, list[bytes]] = {}
    for key in wanted:
        by_length.setdefault(len(key), []).append(key)
    for length, some in by_length.items():
        fits = lengths == length
        if keys.valid is not None:
            fits &= keys.valid
        candidates = np.flatnonzero(fits)
        if len(candidates):
            found[candidates[_is_one_of(keys.take(candidates), length, some)]] = True
    return found


def _is_one_of(items: BinaryColumn, length: int, wanted: list[bytes]) -> Flags:
    """Return a flag for each item: True if the item is in `wanted`. All items and all wanted keys
    have `length` bytes."""
    if not length:
        return np.ones(len(items), np.bool_)
    # numpy's fixed-length text drops trailing zeros. Two different items of the same length
    # nevertheless stay different.
    kind = f"S{length}"
    rows = np.ascontiguousarray(items.content()).view(kind)
    return np.isin(rows, np.array(wanted, kind))


def _header_matches(records: Columns, wanted: WantedHeader) -> Flags:
    found = _none_of(records)
    headers = records.headers
    if headers is None or not headers.size_bytes:
        return found
    data = headers.content()
    ends = headers.ends[1:].astype(np.int64) - int(headers.ends[0])
    lines, owners = _lines_named(data, ends, wanted.name)
    if wanted.value is not None and len(lines):
        right = _value_is(data, lines, ends[owners], wanted.value)
        owners = owners[right]
    found[owners] = True
    return found


def _lines_named(data: Bytes, ends: Offsets, name: bytes) -> tuple[Offsets, NDArray[np.intp]]:
    """Find the header lines with this name; return the start of the value and the record of each.

    A block consists of lines separated by CR LF; the first line is not a header.
    """
    breaks = np.flatnonzero(data[:-1] == _CR)
    breaks = breaks[data[breaks + 1] == _LF]
    owners = np.searchsorted(ends, breaks, "right")
    starts = breaks + 2
    # The name and its colon must fit into the block in which the line begins.
    fits = starts + len(name) < ends[owners]
    starts, owners = starts[fits], owners[fits]
    for place, letter in enumerate(name):
        if not len(starts):
            break
        same = _LOWER[data[starts + place]] == letter
        starts, owners = starts[same], owners[same]
    same = data[starts + len(name)] == _COLON
    return starts[same] + len(name) + 1, owners[same]


def _value_is(data: Bytes, starts: Offsets, ends: Offsets, value: bytes) -> Flags:
    """Return True for each line whose rest is `value`, ignoring blanks around it."""
    solid = np.flatnonzero((data != _BLANKS[0]) & (data != _BLANKS[1]))
    begins = _at_or_behind(solid, starts, ends)
    right: Flags = begins + len(value) <= ends
    for place, octet in enumerate(value):
        # `right` is already False where the value does not fit; `minimum` keeps the index valid.
        right &= data[np.minimum(begins + place, len(data) - 1)] == octet
        if not right.any():
            return right
    stops = _at_or_behind(solid, begins + len(value), ends)
    inside = np.minimum(stops, len(data) - 2)
    right &= (stops == ends) | (
        (data[inside] == _CR) & (data[inside + 1] == _LF) & (stops + 2 <= ends)
    )
    return right


def _at_or_behind(solid: NDArray[np.intp], positions: Offsets, ends: Offsets) -> Offsets:
    """Return, for each position, the position of the first non-blank byte at or after it, or the
    end of the block."""
    places = np.searchsorted(solid, positions)
    found: Offsets = np.minimum(np.append(solid, np.iinfo(np.int64).max)[places], ends)
    return found
