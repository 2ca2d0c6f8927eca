"""Acks of workers, and their pulls for consumers with acks, as they arrive over NATS.

worker_link  the connection on which they arrive, for the streams that this node leads
acks        acks in columns, parsed from the messages of one read
ack_bodies  the body of one ack
pulls       pulls, parsed
advisories  what happens to messages and consumers, for those who listen
"""
