"""The pull protocol, without I/O: nothing here opens a socket or reads a clock.

    messages, administration, checkpoints    requests and answers, as values; errors among them
    replication                              requests between nodes, and about the cluster
    consumer_states                          the states of consumers with acks, between nodes
    groups                                   requests of consumer groups
    workers                                  requests of workers, and about consumers with acks
    described                                values inside requests and answers
    wire                                     converts values to msgpack maps and back, by the
                                             fields' declarations
    frames                                   converts maps and bodies to bytes and back
    handshake                                the states of a connection; the proof of identity
    client_connection, server_connection     the two ends of a connection
    limits                                   limits on memory and waiting time

`docs/reference/protocol.md` is the normative description; this package is its only implementation
in this project, shared by the server and both clients.
"""
