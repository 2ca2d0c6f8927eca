"""Tools for a log's files, without a daemon or beside a running one. Blocking, only on request.

    files        the streams of a directory, their small files, the valid part of a segment
    verify       reports damage, earlier losses and unfinished tails of a stream
    dump         yields all whole batches and all gaps

These only read: a running daemon may append, roll and delete meanwhile. The others write, while no
daemon uses the log:

    repair       runs all steps in order; recovery itself handles the active segment
    rebuild      rebuilds manifest and indexes from the segments, as far as these prove them
    filesystems  for repair: one only pretends to change files, the other keeps copies

The daemon does none of this by itself: it recovers the end of a log and quarantines damage that it
finds, but it does not read everything, and it does not touch a stream without a manifest. The code
that it shares with these tools is in `log/segment/walk.py`.
"""
