"""The interface of consumers with acks for NATS and for the pull socket.

door        creates, changes and describes consumers, and gives their messages to workers

Their implementation is in `liftlog.server.jetstream_api.workers`.
"""
