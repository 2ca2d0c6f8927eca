"""One stream: from runs of messages to committed groups, and what must not run beside a commit.

host           the log, the settings, who writes and who waits
committing     groups of judged messages: written, synced, answered; or taken back
turns          one job at a time on a log: commits, flushes, exclusive calls
group_writing  how a group is compressed and written
budget         whether a commit may run inside the event loop
writer_pool    ... or gets a thread
waiting        who waits for commits
observations   what is counted, how long acks take
configs        settings of a stream in the terms of its log and its sequencer
damage         damage that a reader met is quarantined before the reader is told
subjects       the newest offset of each subject: scanned, saved, restored
"""
