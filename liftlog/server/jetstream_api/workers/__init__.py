"""Consumers with acks of JetStream's clients; the decisions are those of `liftlog.deliveries`.

acked_table     all of them: creates, updates, deletes, opens them after a restart stored          a
consumer in the journal updates checks which settings of a consumer may change acked_consumer  one
consumer: reads what it wants, and has its changes written buffer          records that were read
and not delivered yet composing       the NATS commands that carry out instructions outbox
sends commands once the journal has the changes behind them rounds          the turns of consumers,
and their timers

worker_link     the connection on which acks and pulls arrive, for the streams that this node leads
acks            acks in columns, parsed from the messages of one read ack_bodies      the body of
one ack pulls           pulls, parsed advisories publishes events of messages and consumers, if
anybody subscribes to them
"""
