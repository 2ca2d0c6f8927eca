"""A batch read, as Spark calls it: the driver plans ranges, and the executors read them.

With the option `pushdown`, the conditions of a query narrow the read. Spark still applies every
condition itself. So the read can return rows that do not match, but must never omit a row that
matches.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from acl import subjects as patterns
from liftlog.spark.columns import KEY, OFFSET, SUBJECT, TIMESTAMP
from liftlog.spark.options import Narrowing, ScanOptions
from liftlog.spark.scan import plan, read
from liftlog.spark.transport import ScanRange

_EQUAL = (EqualTo, EqualNullSafe)
_FROM = (*_EQUAL, GreaterThan, GreaterThanOrEqual)
_UP_TO = (*_EQUAL, LessThan, LessThanOrEqual)


@dataclass
class RangePartition(InputPartition):
    wanted: ScanRange


def read_partition(options: ScanOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition. The placeholder that Spark creates for an empty plan has no
    rows."""
    calm_garbage_collector()
    if isinstance(partition, RangePartition):
        yield from read(options, partition.wanted)


class RangeReader(DataSourceReader):
    def __init__(self, options: ScanOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        calm_garbage_collector()
        return [RangePartition(wanted) for wanted in plan(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)


class PushdownReader(RangeReader):
    """A reader with `pushFilters`. It is a separate class, because Spark accepts a reader with
    `pushFilters` only if a setting of Spark allows pushdown."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        self._options = narrowed(self._options, filters)
        return filters  # Spark applies all conditions again


def narrowed(options: ScanOptions, filters: Sequence[Filter]) -> ScanOptions:
    """Return options of the same read, without records that fail one of these conditions."""
    for one in filters:
        column, value = _condition(one)
        if column == OFFSET and isinstance(value, int):
            options = replace(options, narrowing=_offsets(options.narrowing, one, value))
        elif column == TIMESTAMP and isinstance(value, datetime) and value.tzinfo is not None:
            options = replace(options, narrowing=_times(options.narrowing, one, value))
        elif column == SUBJECT and isinstance(value, str) and isinstance(one, _EQUAL):
            options = _one_subject(options, value)
        elif column == KEY and isinstance(value, bytes | bytearray) and isinstance(one, _EQUAL):
            options = replace(options, narrowing=replace(options.narrowing, key=bytes(value)))
    return options


def _condition(one: Filter) -> tuple[str, Any]:
    if not isinstance(one, (*_FROM, *_UP_TO)) or len(one.attribute) != 1:
        return "", None
    return one.attribute[0], one.value


def _offsets(narrowing: Narrowing, one: Filter, value: int) -> Narrowing:
    if isinstance(one, _FROM):
        first = value + isinstance(one, GreaterThan)
        narrowing = replace(narrowing, first_offset=max(narrowing.first_offset, first))
    if isinstance(one, _UP_TO):
        end = value + (not isinstance(one, LessThan))
        if narrowing.end_offset is not None:
            end = min(end, narrowing.end_offset)
        narrowing = replace(narrowing, end_offset=end)
    return narrowing


def _times(narrowing: Narrowing, one: Filter, value: datetime) -> Narrowing:
    # Only the start is narrowed, not the end: after a clock was set back, later records can have
    # earlier timestamps.
    if isinstance(one, _FROM) and (narrowing.not_before is None or value > narrowing.not_before):
        narrowing = replace(narrowing, not_before=value)
    return narrowing


def _one_subject(options: ScanOptions, subject: str) -> ScanOptions:
    # A subject that contains a wildcard would match other subjects. And the option's own pattern
    # must still apply.
    literal = patterns.why_invalid(subject) is None and not {"*", ">"} & set(subject.split("."))
    if literal and (options.subject is None or patterns.matches(options.subject, subject)):
        return replace(options, subject=subject)
    return options


@cache
def calm_garbage_collector() -> None:
    """Exclude the objects that exist now from garbage collection, once per worker process. Spark
    runs the garbage collector after every task, and scanning the objects of PySpark, pyarrow and
    numpy takes longer than a small task."""
    gc.collect()
    gc.freeze()
