"""Dead letters: a record whose processing fails is retried, then published to another subject.

    letters = DeadLetters(publisher, "dead.orders", expect=["dead"], retries=3)
    async with client.group("billing", "orders") as records:
        await letters.run(records, bill)

SyncDeadLetters is the same for the blocking client. docs/how-to/dead-letters.md shows both.
"""

from __future__ import annotations

from liftlog.client.aio.dead_letters import DeadLetters
from liftlog.client.blocking.dead_letters import SyncDeadLetters

__all__ = ["DeadLetters", "SyncDeadLetters"]
