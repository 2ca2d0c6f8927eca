"""This daemon as a node of a cluster: its replicas, and where replicas and leaders should be.

In these modules, a *record* is usually a stream's metadata record in the metadata store.

adopting         makes a daemon with streams of its own the first node of a cluster
clustered        joins the cluster, and starts and stops everything that a node runs
offsets          the cluster's checkpoints: their stream, and the node that serves them
own_offsets      checkpoints from the time before a daemon shared the cluster's checkpoints
cluster_catalog  the catalog of a node: finds, creates, changes and deletes streams by their records
replicated       creates the parts of a node, connects them, and stops them
opening          the start: records seen before, copies on the disk, and which of them are opened
own_record       the node's own record in the store: taken by another process, lost, or stopping
stream_settings  the settings of all streams of the cluster, from their records
candidacy        this node in elections: when it may lead, and when it elects itself
replicas         the replicas of this node, each while a record concerns it
election_copies  the copies here as elections use them: where each ends, and what it can do
peer_service     serves the followers on other nodes, and answers the questions of those nodes
upkeep           periodic work: in-sync sets, moves, records of deleted streams, tombstones
replica          one replica: follows the stream's record, one version at a time
role             the role of a replica: leader or follower
copy_on_disk     a replica's log between two roles: opened, checked against the record, dropped
leadership       decides which node should lead the streams of this one
handing_over     moves the leadership of a stream to another node, or to this one
successors       handles clients that have read from a newer leader than this one
local_node       the services of its node that each replica uses
copies           a replica's directory: opens, creates and removes it
placing          chooses the nodes for a new stream
moves            moves replicas to other nodes: single moves, drained nodes, forgotten nodes
cluster_view     the cluster as this node sees it, and the nodes that can answer its clients
"""
