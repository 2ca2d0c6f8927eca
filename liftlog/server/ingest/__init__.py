"""From the NATS connection to runs of messages.

batch_parser  the NATS wire protocol, many messages at a time
transport     nats-py's TCP transport with larger reads, straight into the parser
seam          where both plug into nats-py, and the slower way if the parser does not fit
login         credentials and TLS, as nats-py takes them
nats_link     the connection: connect for ever, subscribe, drain, notice possible losses
"""
