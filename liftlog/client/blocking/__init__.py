"""The blocking client, without threads.

Made from the modules of `liftlog.client.aio` by `make blocking`, except for these:

background  work in a thread beside its caller, over a connection of its own
link        one connection, over a socket of its own
turns       a client belongs to one thread at a time: no call waits for another
sockets     connect, send and receive, and block meanwhile
"""
