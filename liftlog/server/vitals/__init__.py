"""What the daemon measures of itself and its machine, and guards against.

disk             whether the data directory can be written, and a reserve for when it is full
delays           how late the event loop is, how long syncs take
clock_guard      a wall clock that steps makes no record old
histogram        counting into buckets
child_processes  processes that end with the daemon
"""
