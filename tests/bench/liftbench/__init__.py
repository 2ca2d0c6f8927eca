"""The benchmark: `make bench` (`main`), `make bench-cluster` (`cluster_main`), `make bench-streams`
(`many_streams`), `make bench-starts` (`starts`), `make bench-over-nats` (`over_nats`),
`make bench-api-flood` (`api_flood`), `make bench-consumers` (`acked_main`), `make bench-erasing`
(`erasing`), `make bench-spark` (`spark_main`).

figures       the rows of the table: what is compared with what, and what must be reached
report        the tables                        progress    what is going on, on stderr
systems       liftlog, JetStream and the ceiling as servers; responder is the ceiling
replicated    the same with three replicas
processes     worker processes, and the disk that it measures on
fsyncs        how often a server calls fsync

What is measured, each with the processes that do it:

publishing    publisher, pacer                  consuming   consumers
reading       readers                           cleaning    stored: files without a daemon
operating     scrapes, reloads, ends            deciding    decisions of the ACL
following     live delivery, of `over_nats`
acked_rows    consumers with acks: acked_sides has the servers, acked_workers the clients
behaviour     floods and idling                 sparking    lake: the data; tuples: without Arrow
replicating   a new replica                     micro_batches  streaming queries of Spark
"""
