"""Replication: the shell around the pure `liftlog.cluster`.

peer_link     the connection to another node
clocks        measures the clocks of other nodes
hearing       tracks which other nodes answer, and calls back when one falls silent
asking        asks many nodes at once about streams
succession    this node's part in the election of leaders
forwarding    forwards requests of clients to the node that answers them
serving       a stream that this node leads: its followers, and what they commit
fetching      a stream that this node follows
log_start     moves the log start of a follower
guarding      stands aside when the metadata store has lost something, and has it restored
repair        fetches records that this node has lost from other nodes
unclean       elects a leader for streams without a complete copy, if `cluster.unclean` says so
"""
