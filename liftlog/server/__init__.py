"""The daemon, divided into rooms (packages and modules). A room may import the rooms below it in
this list, and none above it; `make lint` checks this.

daemon       puts the rooms together, runs, stops cleanly
late_parts   imports and starts the parts that publishers do not wait for
http_port    the HTTP port from the daemon's settings
metrics      counters and other values, exported to Prometheus
life         signals, reload, systemd, embedded NATS, logs, health
web          the web page
jetstream_api  JetStream's API over NATS
http         probes, the HTTP API
pull         the pull API's server
requests     handles the requests that arrive over any of these ports
node         this daemon as a node of a cluster: its replicas, and where leaders should be
reading      reads logs for clients: filtered, in bounded steps, shared fairly
streams      all streams: opened, created, changed; retention, leases
cleaning     compaction, re-batching and scrubbing, in a process of their own
replication  elections, and streams that this node serves to other nodes or fetches from them
checkpoints  the positions of consumers, in the stream `_offsets`
journal      the journal of consumers with acks
metadata     the metadata store, and this node's place in it
commits      one stream: from runs of messages to committed groups
ingest       from the NATS connection to runs of messages
access       identifies clients and checks what they may do
vitals       measures and guards disk, event loop, clock and child processes
"""
