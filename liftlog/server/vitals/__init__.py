"""How the daemon is: what it measures of itself and of its machine.

disk_probe       writes to the disk now and then, and tells how long that takes
disk_reserve     room for the day when the disk is full
loop_watch       how late the event loop is
sync_times       how long syncs take
clock_guard      a wall clock that jumps makes nothing old
histogram        counting into buckets
child_processes  processes that end with the daemon
"""
