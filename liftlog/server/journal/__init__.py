"""The journal of consumers with acks: their changes and snapshots, in one log for this daemon.

records    one record: its key, its header, its kinds
ledger     finds the records of each consumer in the log
content    reads the log: the whole log at the start, single consumers later
storing    appends, syncs, rolls back after a failed sync, cuts off old segments
snapshots  decides which consumers are written again as snapshots
names      the names of all consumers
jobs       runs blocking calls in writer threads
upkeep     requests snapshots, and cuts off old segments
transfer   encodes and decodes changes for another node
journal    writes the changes: one append per turn of the event loop, one sync for all callers
opening    opens or creates the journal
holding    owns the journal from the start of the daemon to its end

A written change becomes durable with the next sync. ADR 53 explains the design.
"""

from __future__ import annotations

from liftlog.server.journal.content import StoredConsumer
from liftlog.server.journal.journal import Journal
from liftlog.server.journal.records import Change, ConsumerKey, StateVersion

__all__ = ["Change", "ConsumerKey", "Journal", "StateVersion", "StoredConsumer"]
