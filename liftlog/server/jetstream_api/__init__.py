"""JetStream's API over NATS, on `$JS.API.>`; docs/reference/jetstream-api.md lists it.

service        takes requests from NATS, has them answered in bounded time, sends the answers
waiting        the requests that wait: bounded, in turns, slow ones apart
inboxes        the party that a request comes from, as far as its inbox shows
pace           bounds the part of the event loop that answers take
presence       finds out whether JetStream itself answers: then this daemon does not

methods        the table of methods, and a request's parts
streams        INFO and STREAM.*: describes, creates, changes and deletes streams
stream_config  JetStream's configuration of a stream, from our settings and into them
message_methods  STREAM.MSG.GET and DIRECT.GET: single records, and batches of them
lookups        finds records by offset, subject and time
purging        STREAM.PURGE: the oldest messages, or those on some subjects
consumer_methods CONSUMER.*
config_fields  reads the fields of both kinds of configurations
answers        JetStream's errors, times, JSON and NATS commands

consumers/     ordered delivery to clients
messages/      the messages that JetStream would still have
"""
