"""Tools that work on the files of a log, with or without a running daemon. Blocking.

    files        the streams of a directory, their small files, the valid part of a segment
    verify       reports damage, earlier losses and unfinished tails of a stream
    dump         yields all whole batches and all gaps
    proving      searches all files for erased records whose bytes should be gone

These tools only read: a running daemon may append, roll and delete at the same time. The following
tools write, and need a log that no daemon uses:

    repair runs all steps in order; recovery itself handles the active segment rebuild rebuilds
    manifest and indexes from the content of the segments filesystems for repair: one changes files
    only in memory, the other keeps copies

The daemon never runs these tools by itself. The daemon recovers the end of a log and quarantines
damage that it finds. But it does not read all records, and does not change a stream without a
manifest. The code that the daemon shares with these tools is in `log/segment/walk.py`.
"""
