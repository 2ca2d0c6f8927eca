"""Compaction, re-batching and scrubbing of sealed segments, beside the daemon's own work.

    throttle    holds a rate, and leaves room on the disk           (in the worker)
    worker      the worker process: runs one job after the other    (in the worker)
    process     starts it, talks to it, notices when it dies
    state       what is going on with a stream, for people and metrics
    compaction  one pass: plan, job, swap
    rebatching  which segments consist of small batches
    scrubbing   which segment is to be verified next; what is damaged
    cleaner     what is done next, one job at a time

A pure-Python thread beside the commits of the event loop would slow them down many times, so all
reading and writing of segments happens in a process of its own, which is nice, holds no lock and
dies with the daemon. It only reads sealed segments and writes new files; the daemon swaps them
in with one write of the manifest.
"""
