"""The asyncio client.

client    `Client`: reading, and the consumer that it opens
calls     its calls that are one request and one answer
consumer  `Consumer`: a stream read from a stored checkpoint on
session   the way to the daemon: one connection, and another one when it is lost
link      one connection, over a socket of its own
"""
