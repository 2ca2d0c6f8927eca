"""Consumers of JetStream's clients: each delivers the records of a stream in order.

table       all consumers of this daemon, limited in number
consumer    one consumer, which delivers to its client
config      JetStream's configuration of a consumer, and the fields that are refused
pull_requests  the requests of a pull consumer
pull_body   the fields of one request, and the limits of its consumer
durations   durations as Go programs write them
push_flow   flow control and heartbeats of a push consumer
delivered   composes the messages that carry records, and counts the records
placing     moves the cursor of a new consumer to its start
cursor      the position of a consumer in the log
chosen      the offsets that a deliver policy has chosen
removals    the records that were erased since a consumer counted them
rows        the records as they are delivered
recent      the newest records of a stream, which its consumers share
live        delivers new records to the consumers that wait for them
deliveries  the subjects that a consumer may deliver to
leaf        the connection over which consumers deliver
leaf_frames the protocol of the leaf connection
interest    the subjects that have subscribers
leaf_login  the login of the leaf connection
budget      a limit that all consumers share
"""
