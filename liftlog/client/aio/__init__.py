"""The asyncio client.

client        `Client`: reading, and the consumer that it opens
batch_reader  the iterator that `read_batches` returns
calls         the client's calls with one request and one answer
consumer      `Consumer`: reads a stream from a stored checkpoint on
group         `GroupConsumer`: a member of a consumer group
worker        `Worker`: gets messages of a consumer with acks, and acks them
consumer_calls
              the calls for consumers with acks
erasure_calls the calls that erase records, and ask about erasures
consuming_block
              common part of both consumers: `async with`, and batches
dead_letters  publishes records that could not be processed to another subject
heartbeats    sends a member's heartbeats while the caller processes records
background_requests
              sends a member's commits and opens its connections in the background
background    runs work in a task of its own
routing       a session for each node of a cluster that receives requests
session       the connection to one daemon, replaced when it is lost
link          one connection, over a socket of its own
dialing       opens sockets, with or without TLS
turns         lets one call at a time reconnect
sockets       connect, send and receive in the event loop
"""
