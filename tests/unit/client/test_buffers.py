from __future__ import annotations

from liftlog.client.connecting.buffers import BufferPool

KIB = 1024


def memory(view: memoryview) -> int:
    return id(view.obj)


def test_a_buffer_is_used_again_once_nobody_looks_at_it() -> None:
    pool = BufferPool()
    first = memory(pool.allocate(300 * KIB))
    assert memory(pool.allocate(200 * KIB)) == first


def test_a_buffer_that_is_looked_at_is_left_alone() -> None:
    pool = BufferPool()
    view = pool.allocate(300 * KIB)
    part = view[10:20]
    del view
    assert memory(pool.allocate(300 * KIB)) != memory(part)
    part.release()
    del part


def test_the_length_is_exact_whatever_lies_under_it() -> None:
    pool = BufferPool()
    for length in (1, 64 * KIB, 100_001, 300 * KIB, 17 * 1024 * KIB):
        assert len(pool.allocate(length)) == length


def test_what_is_kept_is_bounded() -> None:
    pool = BufferPool(max_buffers=3)
    held = [pool.allocate(100 * KIB) for _ in range(10)]
    assert len({memory(view) for view in held}) == 10
    assert len(pool) == 3


def test_a_larger_need_replaces_a_buffer_that_is_too_small() -> None:
    pool = BufferPool(max_buffers=1)
    pool.allocate(100 * KIB)
    large = memory(pool.allocate(1024 * KIB))
    assert memory(pool.allocate(1024 * KIB)) == large


def test_small_bodies_are_not_pooled() -> None:
    pool = BufferPool()
    pool.allocate(1000)
    assert len(pool) == 0
