"""Consumer groups, as decisions: who owns which slot of a stream, and whose commit counts. No I/O,
no clock.

state        one group as it is stored: members, owners and offsets of its slots
assignment   how many slots each member has, which ones move, who gets those that are free
requests     what is asked of the coordinator, and what members are told
coordinator  joins, beats, commits and leaves, judged together; sessions and their end
quota        how many groups and members there may be, of each principal
"""
