"""`liftlog demo`: shows the main task of liftlog end to end, with a real nats-server and a real
daemon.

command     `liftlog demo`, `liftlog demo-cluster`
scenario    the steps of the demo
failover    the demo of a cluster: three servers, three daemons, and the death of the leader
publishing  publishes with plain nats-py, and checks the records at the end
running     runs the daemon as a separate process; prints, runs and ends a demo
"""
