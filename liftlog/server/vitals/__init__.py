"""What the daemon measures of itself and its machine, and guards against.

disk             a disk that hangs, is full or cannot be written; a reserve for when it is full
conditions       what is wrong with the daemon: the one list that every surface shows
delays           a slow disk, a late event loop: the time of each sync, the lag of the loop
clock_guard      a wall clock that steps makes no record old
descriptors      how many files the process may open, and who gets how many
slices           long work in the event loop, in slices
histogram        counting into buckets
child_processes  processes that end with the daemon
"""
