"""Measures the daemon and its machine, and protects the daemon from their faults.

disk             a disk that hangs, is full or cannot be written; a reserve for when it is full
conditions       the one list of the daemon's problems, which every interface shows
delays           the duration of each sync, and the lag of the event loop
clock_guard      measures ages with a time that does not follow jumps of the wall clock
descriptors      divides the files that the process may open among its parts
slices           divides long work in the event loop into slices
rare_warnings    logs a repeated warning at most once a minute
histogram        counts values in buckets
child_processes  processes that end with the daemon
"""
