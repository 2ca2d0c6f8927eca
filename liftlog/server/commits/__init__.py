"""One stream: from runs of messages to committed groups, and the log calls that must not run at the
same time as a commit.

host           the log, the settings, the writers and the waiting callers; refuses messages (429)
               when too many bytes wait for the disk
committing     groups of judged messages: writes each with one sync, holds it until the gate
               commits it, and answers or undoes it
rounds         commits of several streams together: their syncs side by side, their answers in one
               write
gate           decides when stored records are committed; with followers, by `liftlog.cluster`
turns          runs one job at a time on a log: a commit, a flush or an exclusive call
writing        encodes, compresses and appends a group, for `committing`: inside the event loop
               within a budget, else in a thread of the pool
waiting        readers and the daemon's own records that wait for a commit
observations   counters, and the time that acks take
configs        converts settings of a stream for its log and its sequencer
damage         quarantines damage that a reader finds, before the reader gets the error
rollups        records that erase older ones when they are committed
subjects       the newest offset of each subject: scans the log, saves and restores the table
"""
