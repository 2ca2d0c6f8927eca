"""JetStream's API over NATS, on `$JS.API.>`; docs/reference/jetstream-api.md lists it.

service        receives requests from NATS, limits their number and time, sends the answers
waiting        the queue of requests: limited, served in turns, slow requests in their own lane
held_pulls     pulls that wait for the next leader of their stream
passed_pulls   pulls that were passed on to a leader that may be frozen
request_workers  takes requests that wait, and has each answered in its turn
immediate      answers requests that need no wait, many with one write
inboxes        identifies the client of a request by its inbox
pace           limits the share of the event loop that answers use
presence       checks whether JetStream itself answers; in that case this daemon does not
monitoring     the page /jsz of the HTTP port
overview       describes the streams and consumers of all nodes
own_requests   requests that the daemon itself sends over NATS

methods        the table of methods, and a request's parts
streams        INFO and STREAM.*: describes, creates, changes and deletes streams
creations      the subjects that streams are about to get
stream_config  converts JetStream's configuration of a stream to our settings and back
message_methods  STREAM.MSG.GET and DIRECT.GET: single records, and batches of them
lookups        finds records by offset, subject and time
erasing        STREAM.MSG.DELETE: erases single messages
purging        STREAM.PURGE: the oldest messages, or those on some subjects
consumer_methods CONSUMER.*
fields         the fields of a request
config_fields  reads the fields of both kinds of configurations
answers        JetStream's errors, times, JSON and NATS commands

workers/       acks and pulls for consumers with acks
consumers/     ordered delivery to clients
messages/      the messages that JetStream would still have
"""
