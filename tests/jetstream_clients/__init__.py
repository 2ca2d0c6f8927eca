"""Runs the tests of JetStream clients of other projects against a core nats-server and a daemon.

__main__   `make jetstream-clients`: gets the suites, runs them, writes the table
suite      what the suites have in common
suites     one class per client: how its tests are got, listed and run
nats_java  the same for nats.java
table      what came out, as docs/reference/jetstream-clients.md shows it
results/   what came out, by client, with the revision of liftlog
servers    what the tests take for a nats-server with JetStream
shims/     what is put beside the tests, so that they start that server; their code is not changed
"""
