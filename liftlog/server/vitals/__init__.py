"""Measurements of the daemon and its machine, and protection from their faults.

disk             a disk that hangs, is full or cannot be written; a reserve for when it is full
conditions       the one list of the daemon's problems, which every interface shows
delays           the duration of each sync, and the lag of the event loop
clock_guard      records do not become old when the wall clock jumps
descriptors      how many files the process may open, and how they are divided
slices           divides long work in the event loop into slices
rare_warnings    logs a warning that repeats at most once a minute
histogram        counts values in buckets
child_processes  processes that end with the daemon
"""
