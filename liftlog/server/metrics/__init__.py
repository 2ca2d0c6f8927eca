"""The metrics that the daemon exports to Prometheus.

table            every metric: name, type, labels, help
values           the source of each metric's value
ack_consumers    the values of single consumers with acks
readings         the counters for the charts of the web page
exposition       `GET /metrics`, in the text format of Prometheus
"""
