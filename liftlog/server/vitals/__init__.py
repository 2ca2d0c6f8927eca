"""Measurements of the daemon and its machine, and protection from their faults.

disk             a disk that hangs, is full or cannot be written; a reserve for when it is full
conditions       the one list of the daemon's problems, which every surface shows
delays           a slow disk, a late event loop: the time of each sync, the lag of the loop
clock_guard      keeps a wall clock that steps from making records old
descriptors      how many files the process may open, and how they are divided
slices           long work in the event loop, in slices
rare_warnings    warnings that repeat, each at most once a minute
histogram        counting into buckets
child_processes  processes that end with the daemon
"""
