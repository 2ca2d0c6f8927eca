"""Parts of the publisher helper: messages, headers, answers, and the order of sending again.

    headers         headers as a caller gives them, and their lines
    message         a message to publish, checked, and the bytes that carry it
    results         what can come of a message
    delivery        one message on its way: what the answers to its attempts prove
    send_queue      which message to send next, and when to send one again
    publisher_link  the connection to NATS: the only module of the client that knows nats-py

All but the last are pure.
"""
