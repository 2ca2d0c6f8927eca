"""From the NATS connection to runs of messages.

batch_parser  the NATS wire protocol, many messages at a time
seam          where it plugs into nats-py, and the slower way if it does not fit
nats_link     the connection: connect for ever, subscribe, drain, notice possible losses
"""
