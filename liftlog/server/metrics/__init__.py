"""The metrics that the daemon exports to Prometheus.

table            every metric: name, type, labels, help
values           where the value of each metric comes from
exposition       `GET /metrics`, in the text format of Prometheus
"""
