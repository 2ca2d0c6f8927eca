"""Compaction on plain lists: applies a pass record by record, and checks the result.

`run_pass` uses the plan, the key map and the keep mask of the package. The other steps are
implemented in the simplest way. Other tests cover the rewriting code of the log.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from compaction import CompactionPlan, CompactionPolicy, plan_compaction
from compaction.keep import keep_mask
from compaction.keymap import KeyMap
from compaction.keys import KeyColumn


class Row(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None
    stamp: int


@dataclass(frozen=True)
class Piece:
    """A segment. The view that planning needs is computed from its rows."""

    base_offset: int
    next_offset: int
    sealed: bool
    rows: tuple[Row, ...]
    delete_horizon_ns: int | None = None
    max_timestamp_ns: int = 0

    @property
    def size_bytes(self) -> int:
        return 10 * len(self.rows)


@dataclass
class CompactedLog:
    pieces: list[Piece]
    policy: CompactionPolicy
    segment_max_bytes: int = 100
    cleaned_below: int = 0
    log_start: int = 0
    quarantined: set[int] = field(default_factory=set)
    tombstones_removed_below: int = 0

    @property
    def rows(self) -> list[Row]:
        return [row for piece in self.pieces for row in piece.rows if row.offset >= self.log_start]

    @property
    def end(self) -> int:
        return self.pieces[-1].next_offset

    def plan(
        self,
        now: int,
        *,
        bound: int | None = None,
        on_demand: bool = False,
        lease: int | None = None,
    ) -> CompactionPlan | None:
        return plan_compaction(
            self.pieces,
            self.policy,
            cleaned_below=self.cleaned_below,
            log_start_offset=self.log_start,
            bound_offset=self.end if bound is None else bound,
            segment_max_bytes=self.segment_max_bytes,
            now_ns=now,
            on_demand=on_demand,
            quarantined=self.quarantined,
            keep_tombstones_from=lease,
        )

    def run_pass(self, plan: CompactionPlan, keymap: KeyMap) -> bool:
        """Apply `plan`. Returns False if the memory was used up before the end of the plan."""
        mapped_end = self._map(plan, keymap)
        pieces: list[Piece] = []
        untouched = list(range(len(self.pieces)))
        outputs = {}
        for first, end in plan.groups:
            if self.pieces[first].base_offset < mapped_end:
                outputs[first] = self._output(range(first, end), plan, keymap)
                untouched = [i for i in untouched if not first <= i < end]
        for i in range(len(self.pieces)):
            if i in outputs:
                pieces.append(outputs[i])
            elif i in untouched:
                pieces.append(self.pieces[i])
        self.pieces = pieces
        self.cleaned_below = mapped_end
        return mapped_end == plan.dirty_end

    def _map(self, plan: CompactionPlan, keymap: KeyMap) -> int:
        for first, end in plan.groups:
            for piece in self.pieces[first:end]:
                rows = [row for row in piece.rows if row.offset >= plan.dirty_from]
                taken = keymap.add(
                    column([row.key for row in rows]), np.array([row.offset for row in rows], int)
                )
                if taken < len(rows):
                    return rows[taken].offset
        return plan.dirty_end

    def _output(self, members: range, plan: CompactionPlan, keymap: KeyMap) -> Piece:
        parts = [self.pieces[i] for i in members]
        rows: list[Row] = []
        horizons = []
        for i, part in zip(members, parts, strict=True):
            kept = survivors(part.rows, keymap, drop_tombstones=plan.drop_tombstones[i])
            kept = [row for row in kept if row.offset >= self.log_start]
            rows += kept
            gone = [row for row in part.rows if is_tombstone(row) and row not in kept]
            if plan.drop_tombstones[i] and gone:
                self.tombstones_removed_below = max(
                    self.tombstones_removed_below, gone[-1].offset + 1
                )
            if any(is_tombstone(row) for row in kept):
                dirty = part.next_offset > plan.dirty_from
                horizons.append(plan.horizon_ns if dirty else part.delete_horizon_ns)
        horizon = max((h for h in horizons if h is not None), default=None)
        return Piece(
            parts[0].base_offset,
            parts[-1].next_offset,
            True,
            tuple(rows),
            horizon,
            max(part.max_timestamp_ns for part in parts),
        )

    def append(self, rows: Sequence[tuple[bytes | None, bytes | None]], now: int) -> None:
        """Append rows to the active segment, which is the last one."""
        active = self.pieces[-1]
        new = [Row(active.next_offset + i, *row, now) for i, row in enumerate(rows)]
        self.pieces[-1] = replace(
            active,
            rows=active.rows + tuple(new),
            next_offset=active.next_offset + len(new),
            max_timestamp_ns=now if new else active.max_timestamp_ns,
        )

    def roll(self) -> None:
        if self.pieces[-1].rows:
            self.pieces[-1] = replace(self.pieces[-1], sealed=True)
            self.pieces.append(Piece(self.end, self.end, False, ()))


def empty_log(policy: CompactionPolicy) -> CompactedLog:
    return CompactedLog([Piece(1, 1, False, ())], policy, log_start=1, cleaned_below=1)


def is_tombstone(row: Row) -> bool:
    return row.key is not None and row.value is None


def column(keys: Sequence[bytes | None], *, noise: bytes = b"") -> KeyColumn:
    """Return a column like one in a batch. `noise` precedes the keys, and fills the places without
    a key."""
    parts = [noise if key is None else key for key in keys]
    ends = np.cumsum([len(noise), *map(len, parts)]).astype(np.int32)
    data = np.frombuffer(noise + b"".join(parts), np.uint8)
    return KeyColumn(ends, data, np.array([key is not None for key in keys], bool))


def survivors(rows: Sequence[Row], keymap: KeyMap, *, drop_tombstones: bool) -> list[Row]:
    keys = [row.key for row in rows]
    mask = keep_mask(
        keymap.newest(column(keys)),
        np.array([row.offset for row in rows], np.int64),
        np.array([key is not None for key in keys], bool),
        np.array([row.value is None for row in rows], bool),
        drop_tombstones=drop_tombstones,
    )
    return [row for row, keep in zip(rows, mask.tolist(), strict=True) if keep]


def table_of(rows: Collection[Row]) -> dict[bytes, bytes]:
    """Return the newest value of each key, which a reader has at the end of the log."""
    table: dict[bytes, bytes] = {}
    for row in rows:
        if row.key is None:
            continue
        if row.value is None:
            table.pop(row.key, None)
        else:
            table[row.key] = row.value
    return table
