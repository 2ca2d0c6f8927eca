"""Consumer groups, as decisions: who owns which slot of a stream, and whose commit counts. No I/O,
no clock.

state        one group as it is stored: members, owners and offsets of its slots
assignment   how many slots each member has, which ones move, who gets the free ones
requests     requests to the coordinator, and its answers to members
coordinator  joins, heartbeats, commits and leaves, judged together; sessions and their end
quota        how many groups and members there may be, per principal
waiting      requests that wait to be judged, in their order
"""
