"""The blocking client, without threads.

client, calls, consumer, consuming_block, group, dead_letters, routing
               made from those of `liftlog.client.aio` by `make blocking`
session, link  by hand: the way to the daemon, and one connection
"""
