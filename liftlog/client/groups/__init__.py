"""A member of a consumer group.

group_member  the slots that a member may read, and its offset in each; no I/O
group_settings  the settings of a group's consumer
grouping      chooses the next record, for both clients
arrived       records that have arrived and are not returned yet
heartbeat     the part of a member's heartbeats that does not wait
"""
