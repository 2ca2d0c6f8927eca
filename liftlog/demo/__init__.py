"""`liftlog demo`: the main job end to end, on a real nats-server and a real daemon.

command     `liftlog demo`, `liftlog demo-cluster`
scenario    what happens, step by step
failover    the same for a cluster: three of each, and the leader dies
publishing  the messages, by plain nats-py, and what must be there in the end
running     the daemon as a process of its own; how a demo is told, runs and ends
"""
