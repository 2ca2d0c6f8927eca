"""The daemon. Its packages and modules are called rooms. A room may import the rooms below it in
this list, and no room above it; `make lint` checks this.

daemon       creates the parts of the daemon from the rooms, runs them, stops them cleanly
late_parts   imports and starts the parts that publishers do not wait for
http_port    creates the HTTP port from the daemon's settings
metrics      counters and other values, exported to Prometheus
life         signals, reload, systemd, embedded NATS, logs, health
web          the web page
jetstream_api  JetStream's API over NATS
http         probes, the HTTP API
pull         the pull API's server
requests     handles the requests that arrive over any of these ports
node         this daemon as a node of a cluster: its replicas, and the placement of leaders
reading      reads logs for clients: with filters, in bounded steps, with a fair share for each
streams      all streams: opens, creates and changes them; retention, leases
cleaning     compaction, re-batching and scrubbing, in a separate process
replication  elections, and streams that this node serves to other nodes or fetches from them
checkpoints  the positions of consumers, in the stream `_offsets`
journal      the journal of consumers with acks
metadata     the metadata store, and this node's place in it
commits      one stream: commits runs of messages in groups
ingest       receives messages from NATS
access       identifies clients and checks what they may do
vitals       measures and guards disk, event loop, clock and child processes
"""
