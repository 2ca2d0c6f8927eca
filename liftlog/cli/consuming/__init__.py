"""Commands that read, and commands for consumers.

consume        reads a stream; consume_group: as a member of a group; consume_exec: runs a command
get            one record, by its offset
consume_worker consume as a worker of a consumer with acks
consumer       consumers with acks
offsets        the offsets at which consumers continue
group          consumer groups
"""
