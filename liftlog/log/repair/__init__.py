"""Mending a log while no daemon uses it: blocking, and only ever at somebody's word.

    walk        the batches of one segment and every stretch where there is none
    damage      what of the listed segments is damaged and not yet quarantined
    rebuild     a manifest from the segments' own headers, as far as they prove it
    repairing   all of it in order; the active segment is left to recovery itself
    pretending  a file system that only pretends to change files: what repair would do
    keeping     one that keeps a copy of what it changes: then repair does it
    indexes     which indexes are missing or wrong, and making them anew

The daemon does none of this by itself: it recovers the end of a log and quarantines what it finds,
but it does not read everything, and a stream without a manifest it leaves alone.
"""
