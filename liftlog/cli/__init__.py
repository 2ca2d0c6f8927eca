"""The `liftlog` command.

main        the entry point                       exit_codes   one table of all exit codes
root        the table of commands; how each ends: its exit code, Ctrl-C, a closed pipe
                                                  problems     stderr: errors, remarks, questions
groups      groups that import what is used       output       tables, JSON, YAML, CSV
options     --server, --output, --set and others  shapes       fields, CSV and templates of objects
record_lines records as lines, or as objects      text         foreign text, for a terminal
suggestions names that the daemon knows           progress     bars for long work

A module for each command, and beside it what it is made of:

serve, config       the daemon; its configuration. daemon_signals: reload and drain
stream              create, ls, info, update, truncate and others; lease has the leases,
                    stream_words how a stream is described
consume, offsets    read; where consumers continue. ranges: offsets and times as they are typed;
                    consume_group: consume as a member of a group
pub                 publish; pub_run does the work, nats_server finds the server
info, top, health   the daemon as it is. top_view: what top shows, and what keys change
cluster             its cluster: init, status; cluster_moves: move, drain, undrain, forget
doctor/             what on this machine would keep the daemon from its work
log_files           `log`. log_reading: the work of verify and dump, log_repair: of repair and
                    reindex, as far as it is not in liftlog/log/offline/
backup              create, info, verify, restore; backup_run does the work
acl                 check, explain, hash-token, new-nkey
errors              ls, lookup
import_records      `import`. import_sources: JetStream, lines, rows of Parquet; import_stan and
                    import_liftbridge: those; import_run: each message stored once
export              a stream as a table; export_run does the work; export_job/ is for spark-submit
context             names for daemons; contexts: the file that keeps them
completion          scripts for the shell

`demo`, `demo-cluster` and `demo-spark` are in liftlog/demo/.

`liftlog --help` and completion import no command: the table in `root` has their short helps. A
command's module imports at its top what its help and its output need. The client, the settings,
the log, the daemon and Spark take longer to import than everything else together, and the function
that needs one imports it: `liftlog COMMAND --help` does not wait for them.
"""
