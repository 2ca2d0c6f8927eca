"""Connects to a daemon or to the nodes of a cluster.

target        addresses, logins, TLS and the time for each
channel       a connected socket, with or without TLS
base_link     the part of a connection that does not wait, for both clients
buffers       memory for the bodies of answers, which is reused
reconnecting  decides when to reconnect, and which requests to repeat
routes        the node of a cluster that answers a request
"""
