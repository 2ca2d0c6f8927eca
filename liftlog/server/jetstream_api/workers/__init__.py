"""Serves consumers with acks. `liftlog.deliveries` makes the decisions.

acked_table     all these consumers: creates, updates and deletes them; opens them after a restart
admission       limits on their number, and one change of a consumer at a time
building        creates a consumer from its parts
stored          a consumer in the journal
loading         loads consumers from the journal
updates         checks changes of a consumer's settings
acked_consumer  one consumer: reads and delivers records, and passes its changes to the journal
arriving        pulls between their arrival and the next turn of their consumer
interest_watch  wakes consumers when NATS reports that a subject has subscribers
sampling        chooses the acks about which a metric is published
pacing          slows deliveries down: rate limits, and the replay of old records
resetting       lets a consumer begin again at another position
renewing        new cursors after a change of filters or rights
growth          wakes consumers that wait at the end of a stream for matching records
buffer          records that were read but not delivered yet
large           records that are too large for NATS; they wait for workers on the pull socket
composing       the NATS commands that carry out instructions
changes         passes a consumer's changes to the journal, and to the stream's followers
led_streams     the streams of a cluster whose consumers this node serves
outbox          sends commands when the journal has the changes on which they depend
rounds          the turns of consumers, and their timers
described       the answer to CONSUMER.INFO
shared          the objects that all consumers share, and the fill level of their buffers

socket_door     serves workers on the pull socket, which use the same consumers
local_work      the workers on the pull socket that wait for one consumer
permissions     the rights of workers over NATS
pieces          record batches for these workers: stored batches, or new batches of some records
without_nats    replaces the connections to NATS if all workers use the pull socket

worker_link     the connection on which acks and pulls arrive, for the streams that this node leads
urgency         decides which acks can wait, and which pulls precede acks of the same read
pressure        stops reading acks and pulls while too many earlier ones are unprocessed
acks            parses the acks of one read into columns
ack_bodies      decodes the body of one ack
pulls           parses pulls
advisories      publishes events of messages and consumers, if anybody subscribes to them
"""
