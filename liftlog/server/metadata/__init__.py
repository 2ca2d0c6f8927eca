"""The metadata store and this node's place in it.

In these modules, a *record* is an entry of the store that describes a stream or a node. A message
that a stream has stored is called a message.

records_file  keys, revisions and values in one checkpoint file; blocking
file_store    the metadata store on top of it, for one daemon or several on one machine
kv_bucket     the metadata in a key-value bucket of JetStream: subjects, configuration, answers
kv_link       requests to JetStream over a connection of the store's own
kv_reads      reads of the bucket: one key, all keys, the state
kv_setup      makes the bucket, and checks it at each start of a node
kv_view       this node's view of the bucket, from notices and scans
kv_store      the metadata store on top of these, for a cluster
sessions      a key that expires, renewed in the background, in either store
one_cluster   rejects a store that belongs to another cluster
records       the records of a daemon without a cluster, which follow the manifests of its streams

membership    this node's name and start, and the names of the other nodes
holders       the process that holds the name of a node, and whether it has ended
mirror        this node's copy of the records of streams, and how it changes them
node_records  changes of the entries of nodes
counted_store access to the store for both: one key at a time, counted, with the errors of clients
known_records the newest records that this node has received, on its own disk
"""
