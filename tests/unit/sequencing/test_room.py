"""A stream that refuses messages at a limit of bytes."""

from __future__ import annotations

from liftlog.sequencing import DedupeWindow, Destinations, MessageRun, Sequencer, SequencerConfig
from liftlog.sequencing.refusals import STORE_FAILED
from liftlog.sequencing.room import Room, Stored

MAX_BYTES = 1000


class World:
    """The log grows by what is written, and by a little more."""

    def __init__(self, columns_from_rows: int, group_max_bytes: int) -> None:
        config = SequencerConfig("s", group_max_bytes=group_max_bytes)
        self.sequencer = Sequencer(config, DedupeWindow(0, 10), Destinations(), next_offset=1)
        self.sequencer.columns_from_rows = columns_from_rows
        self.stored = Stored(1, 1, 0)
        self.sequencer.room = Room(None, MAX_BYTES, lambda: self.stored)

    def judge(self, *sizes: int) -> int:
        """How many are taken."""
        before = self.sequencer.next_offset
        payloads = [b"x" * size for size in sizes]
        self.sequencer.judge(MessageRun([b"a"] * len(sizes), [b""] * len(sizes), payloads), 0)
        return self.sequencer.next_offset - before

    def write(self) -> None:
        group = self.sequencer.take_group()
        assert group is not None
        size = self.stored.size_bytes + group.size_bytes
        self.stored = Stored(1, group.next_offset, size)
        assert self.judge(MAX_BYTES - size - self.unwritten + 1) == 0, "it is counted once"
        self.sequencer.committed(group)

    @property
    def unwritten(self) -> int:
        groups = [*self.sequencer._out, *self.sequencer._full, self.sequencer._open]
        end = self.stored.log_end
        return sum(one.size_bytes for one in groups if one.base_offset >= end)


def test_what_fits_is_taken_in_the_order_of_arrival() -> None:
    for columns_from_rows in (1, 100):
        for group_max_bytes in (1, 10**6):
            world = World(columns_from_rows, group_max_bytes)
            assert world.judge(400, 500, 200, 100, 1) == 3
            assert world.sequencer.refused == {"full": 2}
            world.write()
            assert world.judge(1) == 0
            # Retention by age, or a purge, has made room.
            world.stored = world.stored._replace(size_bytes=600 - world.unwritten)
            assert world.judge(300, 100) == 2
            assert world.judge(1) == 0


def test_what_could_not_be_written_leaves_its_room() -> None:
    world = World(1, 10**6)
    assert world.judge(600, 500) == 1
    group = world.sequencer.take_group()
    assert world.judge(500) == 0
    assert group is not None
    world.sequencer.failed(group, STORE_FAILED)
    assert world.judge(500, 500, 1) == 2
