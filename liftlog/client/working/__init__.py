"""The common part of both clients' workers, which receive the messages of consumers with acks.

settings      the arguments of a worker, and the settings of a consumer
deliveries    batches of delivered messages, and the messages in them
working       the unacked messages of a worker, and its requests
"""
