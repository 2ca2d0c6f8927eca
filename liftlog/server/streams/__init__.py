"""All streams: opened, created, changed, leased, kept within their retention.

broker           all of them: found, created, described, deleted
administration   changed while they run
settings         their settings: compared, merged, stored
making           opens streams from disk, creates new ones with all that they need
dedupe_restoring the message ids that a stream remembers, after a start
ids_ahead        those of streams that are followed, before this node leads one
attachments      their subscriptions, and when messages may have been missed
intake           what they share on the way in; when reading from NATS waits for the disk
leases           granted, renewed and ended for readers; `log.leases` stores them
retention        asks `compaction.retention` what to delete, holds back what is needed, deletes
housekeeping     retention, rolling and recovery points, a few streams at a time
replicated       the streams that have records in a cluster: changed, served to other nodes
replica          one of them: has the role on this node that its record says
local_node       what each of them needs of its node
leadership       which node should lead the streams of this one
handing_over     the lead of one moves to another node, or to this one
copies           its directory: opened, created, removed
placing          which nodes hold a new one
moves            replicas go to other nodes: moves, drained nodes, nodes that are forgotten
offsets          the checkpoints of a cluster: their stream, and who serves them
own_offsets      checkpoints from before a daemon shared those of a cluster
cluster_view     what clients are told of the cluster, and who else can answer them
adopting         a daemon on its own becomes the first node, with its streams
clustered        this daemon as a node: joins, and reaches the others
neighbours       what streams have to know about each other
description      descriptions of streams, and what is wrong with them
"""
