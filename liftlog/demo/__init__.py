"""`liftlog demo`: the main job end to end, on a real nats-server and a real daemon.

command     the click command            processes   nats-server and daemon, ended whatever happens
scenario    what happens, step by step   publishing  the messages, through nats-py as it is
story       how it is told               checking    what must be there in the end
running     how any demo runs and ends   spark/      `liftlog demo-spark`, the same for the lake
"""
