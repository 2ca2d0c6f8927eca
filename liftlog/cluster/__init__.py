"""The rules of replication: which node leads a stream, which records are committed, and what a
follower does next.

The modules are pure, like `liftlog.sequencing`: events go in, effects come out, and there is no
clock, socket, file or event loop. Times are passed in as monotonic seconds. The daemon drives these
modules, and so does a simulator that loses, delays, repeats and reorders every message.

There is no controller. Each stream has one record in the metadata store. A node that may change it
computes the new record with a pure function and commits it by compare-and-set. Clocks and sessions
only decide when a node tries a change; safety follows from epochs and from the rules below.

record        the metadata of one stream, and the role of a node that follows from it
transitions   every change of a record: from the old one to the new one
store         interface of the store that holds the records
epochs        the table by which two logs find the offset where they diverge
side_state    versions of the state that followers copy beside the log
consumer_states  copies the states of consumers with acks from the leader to the followers
leading       the leader: what is committed, what followers get, which replicas are in sync
followers     a leader's followers: their requests, its verdicts, the state of each
following     the follower: fetch, append, truncate, start again
election      when a node takes over the leadership of a stream, and when it resigns
unclean       which copy becomes the leader when no copy is known to be complete
handover      moves the leadership to another node while messages keep arriving
guard         which record to restore when the metadata store has lost changes
clocks        whether this node's clock agrees with the majority
placement     which nodes get the replicas of a stream
"""
