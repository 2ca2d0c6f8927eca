"""The pull API's server: sockets in front of the streams.

Imports run one way, downwards in this list; `make lint` checks that.

server           `PullServer`: accepts connections and keeps them within their bounds
certificates     makes the TLS context from files, at the start and at each reload
connection       one connected client: its socket, its login, its end
client_requests  hands each request of a client to the code that answers it

fetches          the fetches of one connection on one stream, in order, with long poll
peers            the requests of another node of the cluster
answers          the messages that one client is sent
services         shared by all connections: made by the server, handed down

send_queue       frames and slices of log files that wait to be sent on a connection
sockets          addresses, the sockets that listen on them, and one connected socket
limits           bounds
waiting_fetch    one fetch: its state while it waits, and the header of its answer

`liftlog.server.requests` answers every request but fetches; `liftlog.server.reading` reads.
"""

from __future__ import annotations

from liftlog.server.pull.limits import PullLimits
from liftlog.server.pull.server import PullServer

__all__ = ["PullLimits", "PullServer"]
