"""What the publisher helper is made of: messages, answers, and in which order to send again.

All of it is pure but `nats_link`, the one module of the client that knows nats-py.
"""
