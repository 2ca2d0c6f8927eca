"""TLS for the pull socket, the same for the daemon and the clients.

`session` is TLS over memory, `sockets` puts it on a socket that never blocks, `contexts` loads
certificates.
"""
