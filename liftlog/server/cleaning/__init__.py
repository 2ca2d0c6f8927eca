"""Compaction, re-batching, sketches and scrubbing of sealed segments, beside the daemon's own work.

    cleaner        decides what is done next, one job at a time
    compaction     plans a pass of one stream by the rules of `compaction.planning`
    next_segments  chooses the next segments to re-batch, to sketch and to scrub
    jobs           one job: runs it, swaps its result in, cleans up when it fails
    mending        repairs damage from other replicas
    state          the state of a stream's cleaning, for people and metrics
    process        starts the worker process, talks to it, notices when it dies
    pace           how fast a job may go: it depends on how busy the daemon is
    worker         the worker process: one job after the other, held to a rate and to free disk

A pure-Python thread beside the commits of the event loop would slow them down many times, so all
reading and writing of segments happens in a process of its own, which is nice, holds no lock and
dies with the daemon. It only reads sealed segments and writes new files; the daemon swaps them in
with one write of the manifest.
"""
