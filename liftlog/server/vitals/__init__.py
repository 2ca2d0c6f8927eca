"""What the daemon measures of itself and its machine, and guards against.

disk_probe       whether the data directory can be written, and how much room is left
disk_reserve     room for what must be written when the disk is full
delays           how late the event loop is, how long syncs take
clock_guard      a wall clock that steps makes no record old
histogram        counting into buckets
child_processes  processes that end with the daemon
"""
