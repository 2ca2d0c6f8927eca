"""Other people's tests of their JetStream clients, run against a core nats-server and a daemon.

__main__   `make jetstream-clients`: gets the suites, runs them, writes the table
suites     one class per client: how its tests are got, listed and run
table      what came out, as docs/reference/jetstream-clients.md shows it
servers    what the tests take for a nats-server with JetStream
shims/     what is put beside the tests, so that they start that server; their code is not changed
"""
