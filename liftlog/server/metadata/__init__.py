"""The metadata store and this node's place in it.

In these modules, a *record* is an entry of the store that describes a stream or a node. A message
that a stream has stored is called a message.

records_file  keys, revisions and values in one checkpoint file; blocking
file_store    the metadata store in this file, for one or several daemons on one machine
kv_bucket     the metadata in a key-value bucket of JetStream: subjects, configuration, answers
kv_link       requests to JetStream over the store's own connection
kv_reads      reads of the bucket: one key, all keys, the state
kv_setup      creates the bucket, and checks it at each start of a node
kv_view       this node's view of the bucket, from notices and scans
kv_store      the metadata store in this bucket, for a cluster
sessions      renews a key that expires, in the background, in both kinds of stores
one_cluster   rejects a store that belongs to another cluster
records       the records of a daemon without a cluster, which follow the manifests of its streams

membership    this node's name and start, and the names of the other nodes
holders       the process that holds the name of a node, and whether it has ended
mirror        this node's copy of the records of streams, and its changes of them
node_records  changes of the entries of nodes
counted_store access to one key at a time; counts writes, and raises the errors of clients
known_records the newest records that this node has received, on its own disk
"""
