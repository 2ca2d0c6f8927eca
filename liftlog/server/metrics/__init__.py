"""What the daemon tells Prometheus.

table            every metric: name, type, labels, help
histogram        counting into buckets
stream_values    where the numbers of a stream come from
daemon_values    ... and those of the daemon
process_values   ... and those of the process
text_format      the lines of the page
exposition       `GET /metrics`
reference        writes docs/reference/metrics.md (`python -m liftlog.server.metrics.reference`)

`table` and `histogram` import nothing of the daemon, and this package imports none of its modules.
"""
