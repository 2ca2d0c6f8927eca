"""All streams of a daemon: opened, created, changed, leased, kept within their retention.

broker           the daemon's streams for all ports: lists, describes, creates and deletes them
catalog          the interface to all streams, for a daemon without a cluster or a node of one
own_catalog      the catalog of a daemon without a cluster (the room `node` has a node's catalog)
hosted           the streams with a copy here: serves, attaches, rests and ends them
administration   changes streams while they run
erasing          selects and erases records of a stream, in turns
erasures         lists erasures with the bytes that are left of each; proves that none are left
erased_offsets   collects the offsets of all erased records, for copies outside the stream
places           requests about the erased records of a stream take turns
settings         compares, merges and stores a stream's settings
making           opens streams from disk, and creates new ones with all their parts
dedupe_restoring restores the message ids of a stream after a start
ids_ahead        learns the message ids of followed streams before this node leads one of them
attachments      subscriptions of streams, and the times at which messages may have been missed
intake           resources that the streams share for incoming messages; pauses reading from NATS
leases           grants, renews and ends leases of readers; `log.files.leases` stores them
retention        asks `compaction.retention` what to delete, keeps what is needed, deletes the rest
clock_keeping    holds back deletion by age while this machine's clock is in doubt
housekeeping     runs retention, rolls and recovery points, a few streams at a time
neighbours       facts about the other streams that each stream needs
description      descriptions of streams, and of their problems
"""
