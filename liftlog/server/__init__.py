"""The daemon, in rooms. Each may import those below it and none above it; `make lint` checks that.

daemon       puts the rooms together, runs, stops cleanly
http_port    the HTTP port from the daemon's settings
metrics      what is counted, exported to Prometheus
life         signals, reload, systemd, embedded NATS, logs, health
web          the web page
jetstream_api  JetStream's API over NATS
http         probes, the HTTP API
pull         the pull API's server
requests     answers requests of all of these
node         this daemon as a node of a cluster: its replicas, and where leaders should be
reading      reads logs for clients: filtered, in bounded steps, shared fairly
streams      all streams: opened, created, changed; retention, leases
cleaning     compaction, re-batching and scrubbing, in a process of their own
replication  elections, and streams that are served to other nodes or fetched from them
checkpoints  the positions of consumers, in the stream `_offsets`
metadata     the metadata store, and this node's place in it
commits      one stream: from runs of messages to committed groups
ingest       from the NATS connection to runs of messages
access       who a client is, and what it may do
vitals       disk, event loop, clock, child processes: measured and guarded
"""
