"""Connects to a daemon or to the nodes of a cluster.

target        addresses, logins, TLS and the time for each
channel       a connected socket, with or without TLS
reconnecting  when to connect again, and which requests to repeat
routes        the node of a cluster that answers a request
"""
