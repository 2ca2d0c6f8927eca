"""`liftlog demo`: the main job end to end, on a real nats-server and a real daemon.

command     `liftlog demo`, `liftlog demo-spark`   processes   the daemon as a process of its own
scenario    what happens, step by step             publishing  the messages, by plain nats-py
story       how a demo is told, runs and ends      checking    what must be there in the end

spark/      `liftlog demo-spark`: the same for the lake
"""
