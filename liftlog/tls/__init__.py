"""TLS for the pull socket, the same for the daemon and the clients.

contexts  certificates and keys -> the contexts of connections
session   TLS over memory, and on a socket that never blocks
"""
