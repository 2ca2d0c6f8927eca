"""The blocking client, without threads.

client    `SyncClient`: reading, and the consumer that it opens
consumer  `SyncConsumer`: a stream read from a stored checkpoint on
session   the way to the daemon: one connection, and another one when it is lost
link      one connection, over a socket of its own
"""
