"""The blocking client, without threads.

Made from the modules of `liftlog.client.aio` by `make blocking`, except for these:

session, link  the way to the daemon, and one connection
sockets        sockets that block
"""
