"""When a commit may run inside the event loop."""

from __future__ import annotations

from liftlog.server.commits.writing import InlineBudget

FAST, SLOW, STALLED = 0.0001, 0.003, 0.2


def test_large_groups_and_a_spent_budget_go_to_threads() -> None:
    budget = InlineBudget(64, 0.001)
    assert budget.allows(64)
    assert not budget.allows(65)
    budget.spent(0.002)
    assert not budget.allows(1)
    budget.begin_chunk()
    assert budget.allows(1)


def test_the_median_decides() -> None:
    budget = InlineBudget(64, 0.001)
    for _ in range(7):
        budget.observe(SLOW)
    assert budget.allows(1)
    budget.observe(SLOW)
    assert not budget.allows(1)
    for _ in range(7):
        budget.observe(FAST)
    assert not budget.allows(1), "as many slow ones as before are still remembered"
    budget.observe(FAST)
    assert budget.allows(1)


def test_a_stall_counts_at_once() -> None:
    """Every further one inside the loop would freeze the daemon for as long."""
    budget = InlineBudget(64, 0.001)
    budget.observe(STALLED)
    for _ in range(8):
        assert not budget.allows(1)
        budget.observe(FAST)
    assert budget.allows(1)
