"""Decides about consumer groups: the owner of each slot of a stream, and the validity of commits.
Does no I/O, and reads no clock.

state        the stored state of one group: members, owners and offsets of its slots
assignment   decides the number of slots of each member, the slots that move, and their new owners
requests     requests to the coordinator, and its answers to members
coordinator  decides about joins, heartbeats, commits and leaves; tracks sessions
quota        limits on the number of groups and members, per principal
waiting      the queue of requests
"""
