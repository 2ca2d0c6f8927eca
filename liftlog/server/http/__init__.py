"""The HTTP port.

server      listens; `/livez`, `/readyz`, `/metrics`; counts requests by route and status
guard       limits on connections: how many, how long
shares      limits on the requests of each caller
callers     identifies callers, and refuses requests that another site's page made a browser send
log_api     `/api/v1/streams/...`, off by default: bounds, one record, append, truncate-prefix
appending   a message through NATS and its ack, on a connection of its own
bodies      records and messages <-> JSON and raw bytes
failures    errors as JSON, and their status
"""
