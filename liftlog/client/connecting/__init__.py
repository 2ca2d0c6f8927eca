"""Connects to a daemon or to the nodes of a cluster.

target        addresses, logins, TLS and the time for each
dialing       opens sockets
reconnecting  when to connect again, and which requests to repeat
routes        the node of a cluster that answers a request
"""
