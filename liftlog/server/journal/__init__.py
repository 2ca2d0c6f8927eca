"""The journal of consumers with acks: their changes and snapshots, in one log for this daemon.

records    one record: its key, its header, its kinds
ledger     finds the records of each consumer in the log
content    reads the log: at the start the whole log, later single consumers
storing    appends, syncs, takes back what a failed sync has dropped, cuts off old segments
snapshots  decides which consumers are written again
names      the names of all consumers
jobs       runs blocking calls in writer threads
upkeep     requests snapshots, and cuts off old segments
transfer   changes on their way to another node
journal    turns of the event loop: one append for all changes, one sync for all waiting callers
opening    opens or creates the journal
holding    the journal from the start of the daemon to its end

A written change becomes durable with the next sync. ADR 53 explains the design.
"""

from __future__ import annotations

from liftlog.server.journal.content import StoredConsumer
from liftlog.server.journal.journal import Journal
from liftlog.server.journal.records import Change, ConsumerKey, StateVersion

__all__ = ["Change", "ConsumerKey", "Journal", "StateVersion", "StoredConsumer"]
