"""The HTTP port.

server      listens; `/livez`, `/readyz`, `/metrics`
guard       what connections may cost: how many, how long
counters    requests by route and status, and their time
log_api     `/api/v1/streams/...`, off by default: bounds, one record, append, truncate-prefix
one_record  one record out of a log, or why there is none
access      who asks, and whether a browser was sent by somebody else's page
appending   a message through NATS and its ack, on a connection of its own
bodies      records and messages <-> JSON and raw bytes
failures    errors as JSON, and their status
"""
