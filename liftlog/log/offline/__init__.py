"""A log's files without a daemon or beside a running one: blocking, and only on request.

    files        the streams of a directory, their small files, how much of a segment counts
    verify       judges a stream: what is damaged, what was lost before, what is only unfinished
    dump         everything that is whole, and every gap

These only read: a running daemon may append, roll and delete meanwhile. The others write, while no
daemon uses the log:

    repair       all of it in order; the active segment is left to recovery itself
    rebuild      manifest and indexes from the segments, as far as they prove them
    filesystems  what repair runs on: one only pretends to change files, the other keeps copies

The daemon does none of this by itself: it recovers the end of a log and quarantines what it finds,
but it does not read everything, and it leaves a stream without a manifest alone. What it shares
with these tools is in `log/segment/walk.py`.
"""
