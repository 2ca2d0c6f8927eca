"""What JetStream's clients ask over NATS, on `$JS.API.>`; docs/reference/jetstream-api.md lists it.

service        takes requests from NATS, has them answered in bounded time, sends the answers
waiting        the requests that wait: bounded, in turns, those that may take long apart
inboxes        who asks, as far as the inbox shows
pace           how much of the event loop the answers may take
presence       whether JetStream is on somewhere: then nothing is answered
methods        which function answers which request, and what a request is
streams        INFO and STREAM.*: streams described, created, changed, deleted
messages       STREAM.MSG.GET and DIRECT.GET: single records, and batches of them
lookups        finds records by offset, subject and time
newest         which records of a stream are the newest of their subjects
shown          what JetStream would still have, by age and subject
ages           which records of a stream are older than its max_age
buckets        which records of a bucket are shown, noted in memory
purging        STREAM.PURGE: the oldest messages, or some subjects
stream_config  JetStream's configuration of a stream, from our settings and into them
consumers      CONSUMER.*: ordered reading
consumer_table, consumer   all consumers; one of them, which delivers to its client
consumer_config  JetStream's configuration of a consumer, and what of it is refused
config_fields  the fields of both kinds of configurations
cursor         where a consumer reads in the log
leaf, leaf_login  the connection over which consumers deliver, and how it is allowed in
answers        JetStream's errors, times, JSON and NATS commands
"""
