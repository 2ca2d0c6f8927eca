"""The HTTP port.

server      listens; `/livez`, `/readyz`, `/metrics`; counts requests by route and status
guard       what connections may cost: how many, how long
shares      how many requests of each caller are under way
callers     who asks, and whether another site's page made a browser ask
log_api     `/api/v1/streams/...`, off by default: bounds, one record, append, truncate-prefix
one_record  one record out of a log, or why there is none
appending   a message through NATS and its ack, on a connection of its own
bodies      records and messages <-> JSON and raw bytes
failures    errors as JSON, and their status
"""
