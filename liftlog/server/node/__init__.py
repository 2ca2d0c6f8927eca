"""This daemon as a node of a cluster: its replicas, and where replicas and leaders should be.

adopting      turns a daemon on its own, with its streams, into the first node of a cluster
clustered     joins the cluster, and starts and stops everything that a node runs
offsets       the cluster's checkpoints: their stream, and the node that serves them
own_offsets   checkpoints from the time before a daemon shared those of a cluster
replicated    streams that have records in the metadata store: changes them, serves other nodes
replica       one replica: takes the role on this node that the stream's record says
leadership    decides which node should lead the streams of this one
handing_over  moves the lead of a stream to another node, or to this one
successors    followers that may take over the lead
local_node    the services of its node that each replica uses
copies        a replica's directory: opens, creates and removes it
placing       chooses the nodes for a new stream
moves         moves replicas to other nodes: single moves, drained nodes, forgotten nodes
cluster_view  the cluster as clients see it, and the nodes that can answer them
"""
