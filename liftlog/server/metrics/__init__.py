"""What the daemon tells Prometheus.

table            every metric: name, type, labels, help
stream_values    where the numbers of a stream come from
daemon_values    ... and those of the daemon
process_values   ... and those of the process
text_format      the lines of the page
exposition       `GET /metrics`
"""
