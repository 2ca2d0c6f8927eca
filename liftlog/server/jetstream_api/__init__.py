"""JetStream's API over NATS, on `$JS.API.>`; docs/reference/jetstream-api.md lists it.

service        receives requests from NATS, limits their number and time, sends the answers
waiting        the queue of requests: limited, served in turns, with a lane for slow requests
held_pulls     pulls that wait for the next leader of their stream
passed_pulls   pulls that were passed on to a leader that may be frozen
request_workers  takes waiting requests from the queue, and has them answered
immediate      answers requests that need no wait; sends many answers with one write
inboxes        identifies the client of a request by its inbox
pace           limits the share of the event loop that answers use
presence       checks whether another server answers; if so, this daemon does not answer
monitoring     the page /jsz of the HTTP port
overview       describes the streams and consumers of all nodes
own_requests   requests that the daemon itself sends over NATS

methods        the table of methods, and the parts that their functions need
streams        INFO and STREAM.*: describes, creates, changes and deletes streams
creations      the subjects of streams that are being created or changed
stream_config  converts JetStream's configuration of a stream to liftlog's settings and back
message_methods  STREAM.MSG.GET and DIRECT.GET: single records, and batches of them
lookups        finds records by offset, subject and time
erasing        STREAM.MSG.DELETE: erases single messages
purging        STREAM.PURGE: deletes the oldest messages, or the messages on some subjects
consumer_methods CONSUMER.*
fields         the fields of a request
config_fields  reads the fields of a configuration of a stream or a consumer
answers        JetStream's errors, times, JSON and NATS commands

workers/       acks and pulls for consumers with acks
consumers/     ordered delivery to clients
messages/      the messages that JetStream would still have
"""
