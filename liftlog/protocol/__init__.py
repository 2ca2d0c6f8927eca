"""The pull protocol, without I/O: nothing here opens a socket or reads a clock.

    messages, administration, checkpoints    requests and answers, as values; errors among them
    replication                              those between the nodes of a cluster, and about it
    groups                                   those of consumer groups
    described                                values that travel inside them
    wire                                     values <-> msgpack maps, by the fields' declarations
    frames                                   maps and bodies <-> bytes
    handshake                                the life cycle of a connection; who a client is
    client_connection, server_connection     its two ends
    limits                                   bounds on all of it

`docs/reference/protocol.md` is the normative description; this package is its only implementation
in this project, shared by the server and both clients.
"""
