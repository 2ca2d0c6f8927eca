"""The HTTP port.

server      listens; `/livez`, `/readyz`, `/metrics`; counts requests by route and status
port        the bound address, before the server is imported
guard       limits the number of connections, and the time that each connection may take
shares      limits on the requests of each caller
callers     identifies callers; refuses requests that a browser sent for a page of another site
log_api     `/api/v1/streams/...`, off by default: bounds, one record, append, truncate-prefix,
            erase
erasing     converts requests to erase records, and their answers
appending   publishes a message on NATS over a separate connection, and awaits its ack
bodies      converts records and messages between Python, JSON and raw bytes
failures    converts errors to JSON and an HTTP status
"""
