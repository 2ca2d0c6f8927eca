"""This daemon as a node of a cluster: its replicas, and where replicas and leaders should be.

adopting         turns a daemon on its own, with its streams, into the first node of a cluster
clustered        joins the cluster, and starts and stops everything that a node runs
offsets          the cluster's checkpoints: their stream, and the node that serves them
own_offsets      checkpoints from the time before a daemon shared those of a cluster
cluster_catalog  the catalog of a node: finds, creates, changes and deletes streams by their records
replicated       the life of a node: its replicas, from the start to the stop
election_copies  the copies here as elections see them: where each ends, and what it can do
peer_service     serves the followers on other nodes, and answers the questions of those nodes
upkeep           periodic work: in-sync sets, moves, records of deleted streams, tombstones
replica          one replica: follows the stream's record, one version at a time
role             what a replica does: it leads, or it follows
copy_on_disk     a replica's log between two roles: opened, judged by the record, dropped
leadership       decides which node should lead the streams of this one
handing_over     moves the lead of a stream to another node, or to this one
successors       followers that may take over the lead
local_node       the services of its node that each replica uses
copies           a replica's directory: opens, creates and removes it
placing          chooses the nodes for a new stream
moves            moves replicas to other nodes: single moves, drained nodes, forgotten nodes
cluster_view     the cluster as this node sees it, and the nodes that can answer its clients
"""
