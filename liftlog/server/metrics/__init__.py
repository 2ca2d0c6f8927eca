"""The metrics that the daemon exports to Prometheus.

table            every metric: name, type, labels, help
values           where the value of each metric comes from
readings         the counters from which the charts of the web page are made
exposition       `GET /metrics`, in the text format of Prometheus
"""
