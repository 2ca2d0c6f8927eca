"""All streams of a daemon: opens, creates and changes them, and applies leases and retention.

broker           the daemon's streams for all ports: lists, describes, creates and deletes them
catalog          the interface to all streams, with and without a cluster
own_catalog      the catalog of a daemon without a cluster (the room `node` has a node's catalog)
hosted           the streams with a copy on this daemon: opens, attaches and closes their hosts
administration   changes streams while they run
erasing          selects and erases records of a stream, in turns
erasures         lists erasures with the bytes that are left of each; proves that none are left
erased_offsets   collects the offsets of all erased records, for copies outside the stream
places           requests about the erased records of a stream take turns
settings         compares, merges and stores a stream's settings
making           opens streams from disk, and creates new streams with all their parts
dedupe_restoring restores the message ids of a stream after a start
ids_ahead        reads the message ids of followed streams before this node leads one of them
attachments      subscriptions of streams, and the times at which messages may have been missed
intake           resources that the streams share for incoming messages; pauses reading from NATS
leases           grants, renews and ends leases of readers; `log.files.leases` stores them
retention        deletes old records by the rules of `compaction.retention`; leases delay this
clock_keeping    stops deletion by age while this machine's clock is in doubt
housekeeping     runs retention, rolls and recovery points, a few streams at a time
neighbours       information about other streams that each stream needs
description      describes streams and their problems
"""
