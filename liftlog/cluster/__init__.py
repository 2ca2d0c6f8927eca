"""Replication as rules: who leads a stream, what is committed, what a follower does next.

Pure, as `liftlog.stream` is: events in, effects out; no clock, sockets, files or event loop. Time
comes in as monotonic seconds. The daemon drives these modules, and so does a simulator that loses,
delays, repeats and reorders everything between them.

There is no controller. Each stream has one record, which any entitled node changes by a pure
function and commits by compare-and-set. Clocks and sessions only decide when a change is tried;
safety follows from epochs and from the rules below.

record        the metadata of one stream, and the role of a node that follows from it
transitions   every change of a record: from the old one to the new one
store         what is asked of the store that holds the records
epochs        the table by which two logs find out where they part
side_state    versions of what followers copy beside the log
leading       the leader: what is committed, what followers get, who is in sync
following     the follower: ask, append, cut, start again
election      when a node takes over the lead of a stream, and when it gives it up
unclean       which copy leads when none is left that is known to be complete
handover      how the lead moves to another node while messages keep coming
guard         what to put back when the metadata store has forgotten something
placement     which nodes get the replicas of a stream
"""
