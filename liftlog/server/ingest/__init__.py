"""From the NATS connection to runs of messages.

batch_parser   the NATS wire protocol, many messages at a time
transport      nats-py's TCP transport with larger reads, straight into the parser
websocket      the same over a WebSocket
seam           where both plug into nats-py, and the slower way if the parser does not fit
login          credentials and TLS, as nats-py takes them
endings        the server's words: why a connection ends, what is refused
connection     one connection to one server, from login to its end
servers        which servers there are
subscriptions  what is wanted, and how it stands
nats_link      one connection after the other, for ever; asks again for what was refused
handover       from a server that is about to stop to another one
overlap        messages that come over two connections, each taken once
jetstream      whether JetStream acks the same messages
"""
