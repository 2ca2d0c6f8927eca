"""The metrics that the daemon exports to Prometheus.

table            every metric: name, type, labels, help
values           where the value of each metric comes from
text_format      the lines of the page
exposition       `GET /metrics`
"""
