"""The blocking client, without threads.

Made from the modules of `liftlog.client.aio` by `make blocking`, except for these:

background  runs work in a thread of its own, over a connection of its own
link        one connection, over a socket of its own
turns       does not wait: only one thread at a time uses a client
sockets     connect, send and receive, and block meanwhile
"""
