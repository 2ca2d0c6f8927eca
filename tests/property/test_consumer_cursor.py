"""The cursor of an ordered consumer, compared with a dict of the log's content: records arrive, are
deleted and compacted while it reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.disks.simfs import SimFileSystem
from support.worlds.rewriting import add, compact_once, keyed, rebatch_file, row, stored

from acl.subjects import matches_any
from liftlog.log.erased import ErasedSet
from liftlog.server.jetstream_api.consumers import chosen
from liftlog.server.jetstream_api.consumers import cursor as module
from liftlog.server.jetstream_api.consumers.budget import Budget, Budgets
from liftlog.server.jetstream_api.consumers.cursor import Cursor
from liftlog.server.jetstream_api.consumers.rows import Row

SUBJECTS = ["s.a", "s.b", "s.c.d", "s.c.e"]
FILTERS = [(), ("s.a",), ("s.*",), ("s.c.>", "s.b"), ("other",)]
ROLLUP = b"NATS/1.0\r\nNats-Rollup: sub\r\n\r\n"


@pytest.fixture(autouse=True, scope="module")
def small_pieces() -> Iterator[None]:
    """Use small pieces, so that a few records make many pieces."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE_BYTES", 300)
        patch.setattr(module, "MAX_ANSWER_BYTES", 300)
        patch.setattr(chosen, "_CLOSE", 3)
        patch.setattr(chosen, "_LONGEST_RUN", 3)
        yield


class AtOnce(Executor):
    def submit(self, function: Callable[..., Any], /, *args: Any, **keywords: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **keywords))
        except Exception as error:
            future.set_exception(error)
        return future


class CursorMachine(RuleBasedStateMachine):
    @initialize()
    def begin_log(self) -> None:
        self.runner = asyncio.Runner()
        self.fs = SimFileSystem()
        self.log = keyed(self.fs)
        self.rows: dict[int, Any] = {}
        self.cursor: Cursor | None = None
        self.budgets = Budgets(Budget(1000, 10), Budget(1000, 10))
        executor = AtOnce()
        scanners = SimpleNamespace(of=lambda party, member: executor)
        self.services: Any = SimpleNamespace(scanners=scanners, cold_readers=executor)

    # --- the log ---

    @rule(
        batches=st.lists(
            st.lists(st.tuples(st.sampled_from(SUBJECTS), st.booleans()), min_size=1, max_size=6),
            min_size=1,
            max_size=3,
        )
    )
    def append(self, batches: list[list[tuple[str, bool]]]) -> None:
        rows = [
            [
                row(
                    subject.encode(),
                    b"%d" % number,
                    subject=subject,
                    headers=ROLLUP if rolls_up else b"",
                )
                for number, (subject, rolls_up) in enumerate(batch)
            ]
            for batch in batches
        ]
        self.rows.update(add(self.log, rows))

    @rule()
    def roll(self) -> None:
        self.log.writer.roll()

    @rule()
    def compact(self) -> None:
        compact_once(self.log, self.fs)
        self._now_there()

    @rule(where=st.floats(0, 1))
    def delete_oldest(self, where: float) -> None:
        start, end = self.log.log_start_offset, self.log.high_watermark
        self.log.truncate_prefix(start + int(where * (end - start)))
        self._now_there()

    def _now_there(self) -> None:
        there = stored(self.log)
        self.is_exact = self.is_exact and len(there) == len(self.rows)
        self.rows = dict(there)

    is_exact = True
    """True if nothing was removed since the cursor began."""

    @precondition(lambda self: self.rows)
    @rule(share=st.floats(0, 0.99), count=st.integers(1, 5))
    def erase(self, share: float, count: int) -> None:
        offsets = sorted(self.rows)
        first = int(share * len(offsets))
        gone = offsets[first : first + count]
        found = self.log.structure.erase(ErasedSet.of_offsets(np.array(gone, np.int64)))
        assert len(found.offsets) == len(gone)
        self.rows = {offset: one for offset, one in self.rows.items() if offset not in gone}
        assert self.cursor is None or not self.cursor.is_counted

    @rule()
    def remove_bytes(self) -> None:
        """Rewrite all segments without their erased records, which leave the erased set."""
        self.log.writer.roll()
        for number, segment in enumerate(self.log.segments[:-1]):
            erased = self.log.view.erased
            if erased is not None and erased.count_in(segment.base_offset, segment.next_offset):
                rebatch_file(self.log, self.fs, number)
        assert self.log.view.erased is None

    # --- the cursor ---

    @rule(
        where=st.floats(0, 1.2),
        newest=st.sampled_from([None, 1, 1, 2, 3]),
        filters=st.sampled_from(FILTERS),
    )
    def begin(self, where: float, newest: int | None, filters: tuple[str, ...]) -> None:
        self._close()
        start, end = self.log.log_start_offset, self.log.high_watermark
        offset = start + int(where * (end - start))
        shown: Any = SimpleNamespace(
            host=SimpleNamespace(log=self.log),
            history=newest,
            first_offset=self.log.log_start_offset,
        )
        self.cursor = Cursor(self.services, shown, filters, None, "member", self.budgets)
        self.runner.run(self.cursor.begin(offset, newest))
        self.filters, self.from_offset, self.is_exact = filters, offset, True
        self.chosen_end = end if newest is not None else 0
        self.chosen = self._newest(newest) if newest is not None else set()
        assert self.cursor.left == len(self._wanted(offset))
        self.at = self.cursor.next_offset

    def _newest(self, count: int) -> set[int]:
        found: dict[str, list[int]] = {}
        for offset, one in sorted(self.rows.items()):
            if count > 1 and one.headers == ROLLUP:
                found[one.subject] = []
            found.setdefault(one.subject, []).append(offset)
        return {offset for some in found.values() for offset in some[-count:]}

    def _wanted(self, start: int) -> list[int]:
        return [
            offset
            for offset, one in sorted(self.rows.items())
            if offset >= max(start, self.from_offset)
            and (offset >= self.chosen_end or offset in self.chosen)
            and (not self.filters or matches_any(self.filters, one.subject))
        ]

    @precondition(lambda self: self.cursor is not None)
    @rule(share=st.sampled_from([1.0, 1.0, 0.5, 0.0]))
    def read(self, share: float) -> None:
        """Read, and deliver a share of the records."""
        cursor = self.cursor
        assert cursor is not None
        found, caught_up = self.runner.run(cursor.read())
        assert cursor.next_offset > self.at or caught_up
        assert not caught_up or cursor.next_offset >= self.log.high_watermark
        due = [offset for offset in self._wanted(self.at) if offset < cursor.next_offset]
        assert [one.offset for one in found] == due
        for one in found:
            there = self.rows[one.offset]
            body = (there.subject.encode(), there.headers, there.value or b"")
            assert one[2:] == body
        self._deliver(found, int(share * len(found)))

    def _deliver(self, found: list[Row], count: int) -> None:
        assert self.cursor is not None
        self.cursor.left = max(self.cursor.left - count, 0)
        if count < len(found):
            self.cursor.go_back(found[count])
        assert not self.is_exact or self.cursor.left >= len(found) - count
        self.at = self.cursor.next_offset

    @precondition(lambda self: self.cursor is not None)
    @rule()
    def count(self) -> None:
        assert self.cursor is not None
        self.cursor.note_erased(self.log.view)
        if self.cursor.is_stale:
            self.cursor.count_anew(0)
        self.runner.run(self.cursor.count())
        assert not self.cursor.is_stale
        if self.is_exact:
            assert self.cursor.left == len(self._wanted(self.at))

    @rule()
    def close_cursor(self) -> None:
        self._close()

    def _close(self) -> None:
        if self.cursor is not None:
            self.cursor.close()
        self.cursor = None
        assert self.budgets.chosen.used == 0

    @invariant()
    def a_search_leaves_nothing(self) -> None:
        assert self.budgets.noted.used == 0

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self._close()
            self.runner.close()


TestCursor = CursorMachine.TestCase
