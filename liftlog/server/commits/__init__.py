"""One stream: from runs of messages to committed groups, and whatever must not meet a commit.

host             its log, its sequencer, and the commits between them
budget           whether a commit may run inside the event loop
writer_pool      ... or has a thread
group_writing    how a group is compressed and written
turns, exclusive calls that must not meet a commit
own_records      records that the daemon itself stores, and who waits for them
waiters          who waits for what is committed
observations     how long acks take, how much one commit shares
configs          settings of a stream in the terms of its log and its sequencer
damage           damage that a reader met is quarantined before the reader is told
subject_scanning, subject_snapshot   the newest offset of each subject, and its file
"""
