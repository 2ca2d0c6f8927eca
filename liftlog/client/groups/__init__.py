"""A member of a consumer group.

group_member  the slots that a member may read, and its place in each, without I/O
group_settings  the settings of a group's consumer
grouping      chooses the next record, for both clients
arrived       records that have arrived and were not returned yet
heartbeat     the part of its heartbeats that does not wait
"""
