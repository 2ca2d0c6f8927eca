"""The visible records of a bucket, by a search of the whole log and by incremental notes: both
equal the result of a plain list."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given, settings
from support.disks.simfs import SimFileSystem
from support.rounds import examples
from support.worlds.rewriting import add, keyed, row

from liftlog.log import Log
from liftlog.records.columns.selection import Selection
from liftlog.server.jetstream_api.messages.buckets import BucketIndex
from liftlog.server.jetstream_api.messages.newest import newest_of, partial_key
from liftlog.server.reading.filtering import scan_log
from liftlog.server.reading.scan import Scan

SUBJECTS = ["k.a", "k.b", "k.c"]
ROLLUP = b"NATS/1.0\r\nNats-Rollup: sub\r\n\r\n"

CHANGES = st.lists(
    st.tuples(
        st.sampled_from(SUBJECTS),
        st.sampled_from(["put", "put", "put", "roll up", "delete", "delete a part"]),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=5,
)


class Model:
    """The visible offsets of each subject."""

    def __init__(self, history: int) -> None:
        self.history = history
        self.shown: dict[str, list[int]] = {}

    def apply(self, subject: str, kind: str, below: int, offset: int) -> None:
        some = self.shown.get(subject, [])
        if kind == "delete":
            some = []
        elif kind == "delete a part":
            some = [one for one in some if one >= below]
        elif kind == "roll up":
            some = [offset]
        else:
            some = [*some, offset]
        self.shown[subject] = some[-self.history :]

    def offsets(self, first_offset: int) -> dict[bytes, list[int]]:
        found = {
            subject.encode(): [one for one in some if one >= first_offset]
            for subject, some in self.shown.items()
        }
        return {subject: some for subject, some in found.items() if some}


def searched(log: Log, history: int, first_offset: int) -> dict[bytes, list[int]]:
    newest = newest_of(history, log.high_watermark)
    scan = Scan(first_offset, None, 1 << 20, Selection(columns=newest.columns))
    newest.note(scan_log(log, scan).body)
    assert newest.size == sum(1 for _ in newest.offsets())
    return {subject: list(some) for subject, some in newest.by_subject().items()}


@settings(max_examples=examples(3))
@given(
    st.lists(st.tuples(CHANGES, st.integers(0, 4)), min_size=1, max_size=8),
    st.sampled_from([1, 2, 3]),
)
def test_all_say_the_same(
    batches: list[tuple[list[tuple[str, str, int]], int]], history: int
) -> None:
    log = keyed(SimFileSystem())
    index, model, first_offset = BucketIndex(history), Model(history), 1
    for changes, expired in batches:
        rows, offset = [], log.log_end_offset
        for subject, kind, back in changes:
            below = max(1, offset - back)
            model.apply(subject, kind, below, offset)
            key = partial_key(below) if kind == "delete a part" else subject.encode()
            value = None if kind.startswith("delete") else b"x" * back
            headers = ROLLUP if kind == "roll up" else b""
            rows.append(row(key, value, subject=subject, headers=headers))
            offset += 1
        add(log, [rows])
        first_offset = min(first_offset + expired, log.high_watermark)
        assert index.advance(log, first_offset, 1000)
        wanted = model.offsets(first_offset)
        assert searched(log, history, first_offset) == wanted
        shown = index._shown
        assert {subject: [one >> 32 for one in some] for subject, some in shown.items()} == wanted
        assert index.count == sum(map(len, wanted.values()))
        sizes = [one & 0xFFFF_FFFF for some in shown.values() for one in some]
        assert index.size_bytes == sum(sizes)
    log.close()
