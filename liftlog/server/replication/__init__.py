"""Metadata and replication: the shell around the pure `liftlog.cluster`.

records_file  keys, revisions and values in one checkpoint file; blocking
file_store    the metadata store on top of it, for one daemon or several on one machine
kv_bucket     the metadata in a key-value bucket of JetStream: subjects, configuration, answers
kv_link       requests to JetStream over a connection of the store's own
kv_view       what notices and scans tell of the bucket, put together
kv_store      the metadata store on top of them, for a cluster
sessions      a key that expires, renewed in the background, in either store
one_cluster   a store that is not used while it is another cluster's
records       the records of a daemon on its own, which follow the manifests of its streams

membership    who this node is, in which of its starts; who the other nodes are
holders       which process holds the name of a node, and whether it has ended
mirror        the records as this node knows them, and how it changes them
known_records what this node has seen of the records, on its own disk
guarding      what to do when the metadata store has forgotten something
asking        what other nodes know of streams
hearing       which other nodes are heard, and who wants to know of those that are not
unclean       a leader for streams of which no complete copy is left, where that is wanted
succession    this node's part in the election of leaders
peer_link     the connection to another node
forwarding    requests of clients that another node answers
serving       a stream that this node leads: its followers, and what they commit
fetching      a stream that this node follows
rare_warnings what is tried many times a second, told once a minute
repair        records that this node has lost, fetched from other nodes
"""
