"""Replication: connects the rules of `liftlog.cluster` to the network, the logs and the clock.

In these modules, `record` usually means a stream's metadata record (`StreamMetadata`).

peer_link     the connection to another node
clocks        measures the clocks of other nodes
hearing       tracks the other nodes that answer, and reports nodes that fall silent
asking        asks many nodes at once about streams
succession    this node's part in the election of leaders
forwarding    forwards requests of clients to the node that answers them
serving       a stream that this node leads: its followers, and the commits that they allow
fetching      a stream that this node follows
serving_consumers   the states of consumers with acks, on the leader of their stream
unconfirmed         the changes that the followers have not confirmed
fetching_consumers  the states of consumers with acks, on a follower of their stream
refusals      the errors with which a leader refuses requests of followers
log_start     moves the log start of a follower
guarding      detects a metadata store that has lost changes, and restores them
repair        fetches records from other nodes if this node has lost them
unclean       elects a leader for streams without a complete copy, if `cluster.unclean` permits
"""
