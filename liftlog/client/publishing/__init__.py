"""The parts of a publisher: messages, headers, answers, and the order of attempts.

    headers         converts headers from the caller's form into lines
    message         a checked message, and its bytes
    results         the possible results of a message
    delivery        one message: its attempts, their answers, and its result
    send_queue      decides which message to send next, and when to repeat one
    publisher_link  the connection to NATS: the only module of the client that uses nats-py

All modules except the last one are pure.
"""
