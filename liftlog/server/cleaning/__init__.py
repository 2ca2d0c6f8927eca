"""Compaction, re-batching, sketching, scrubbing and repair of sealed segments in the background.

    cleaner        selects the next job; one job runs at a time
    compaction     plans a pass over one stream by the rules of `compaction.planning`
    next_segments  chooses the next segments to rewrite, to sketch and to scrub
    removing       removes the bytes of erased records at once, on request
    jobs           runs one job: puts its result into the log, or cleans up if it fails
    mending        repairs damage from other replicas
    state          the state of a stream's cleaning, for people and metrics
    process        starts the worker process, exchanges messages with it, detects its end
    pace           the rate of a job, which depends on how busy the daemon is
    worker         the worker process: runs one job at a time, within limits of rate and disk space

A thread of pure Python code would make the commits of the event loop many times slower. Therefore a
separate process reads and writes all segments. It has a low priority, holds no lock, and is killed
when the daemon ends. It only reads sealed segments and writes new files. The daemon then replaces
the old files by the new ones with one write of the manifest.
"""
