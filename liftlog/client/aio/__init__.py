"""The asyncio client.

client        `Client`: reading, and the consumer that it opens
batch_reader  the iterator that `read_batches` returns
calls         its calls that are one request and one answer
consumer      `Consumer`: a stream read from a stored checkpoint on
group         the members of a consumer group share a stream
consuming_block
              what both have: the end of their block, and batches
dead_letters  records that could not be processed are published elsewhere
heartbeats    a member sends heartbeats while its caller works
background_requests
              its commits and new connections, meanwhile
background    work in a task beside its caller
routing       a session for each node of a cluster that is asked something
session       the way to a daemon: one connection, and another one when it is lost
link          one connection, over a socket of its own
dialing       opens sockets, with or without TLS
turns         one call at a time connects again
sockets       connect, send and receive in the event loop
"""
