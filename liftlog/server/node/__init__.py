"""This daemon as a node of a cluster: its replicas, and the placement of replicas and leaders.

In these modules, a *record* is usually a stream's metadata record in the metadata store.

adopting         adds existing streams to a cluster, for example when the first node is created
clustered        joins the cluster, and starts and stops everything that a node runs
offsets          the cluster's checkpoints: their stream, and the node that serves them
own_offsets      checkpoints from the time before a daemon shared the cluster's checkpoints
cluster_catalog  the catalog of a node: finds, creates, changes and deletes streams by their records
replicated       creates the parts of a node, connects them, and stops them
opening          the start: loads known records, finds copies on the disk, opens streams
own_record       the node's own record in the store: detects its loss, or another process
stream_settings  the settings of all streams of the cluster, from their records
candidacy        decides when this node may lead, and when it begins an election
replicas         the replicas of this node, one for each stream with a copy on it
election_copies  the copies of this node as elections use them: their ends, and which can lead
peer_service     serves the followers on other nodes, and answers the requests of these nodes
upkeep           periodic work: in-sync sets, moves, records of deleted streams, tombstones
replica          one replica: follows the stream's record, one version at a time
role             the role of a replica: leader or follower
copy_on_disk     a replica's log between two roles: opened, checked against the record, dropped
leadership       decides which nodes should lead the streams of this node
handing_over     moves the leadership of a stream to another node, or to this node
successors       handles clients that have read from a newer leader than this node
local_node       the services of the node that each replica uses
copies           a replica's directory: opens, creates and removes it
placing          chooses the nodes for a new stream
moves            moves replicas to other nodes: single moves, drained nodes, forgotten nodes
cluster_view     the cluster as this node sees it, and the nodes that can answer its clients
"""
