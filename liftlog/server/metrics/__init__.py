"""The metrics that the daemon exports to Prometheus.

table            every metric: name, type, labels, help
stream_values    the values of one stream
daemon_values    the values of the daemon and its process
text_format      the lines of the page
exposition       `GET /metrics`
"""
