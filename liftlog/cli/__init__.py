"""The `liftlog` command.

main        the entry point                       exit_codes  one table of all exit codes
root        the table of commands                 problems    errors in words, on stderr
groups      groups that import what is used       questions   asking before something goes
options     --server, --token, --output, --debug  output      tables, JSON, JSON lines and YAML
text        what strangers wrote, for a terminal  paths       places that are not made yet
suggestions, completion   names that the daemon knows

A module for each command, and beside it what it is made of:

serve, config       the daemon; its configuration
stream              create, ls, info, for, compact, rm; stream_changes has the other changes, lease
                    the leases, stream_settings --set, stream_words and compaction the words
consume, offsets    read; where consumers go on. ranges, positions: offsets and times as they are
                    typed; record_output: records as they are printed; client_events: what the
                    client tells meanwhile
pub                 publish. pub_messages: what; pub_run, publisher: how; acks: what came back;
                    standard_input: lines from there
info, top, health   the daemon as it is
doctor/             what of this machine would keep it from its work
log_files           `log verify` and `dump`; log_repair: `repair` and `reindex`. What they do is in
                    liftlog/log/offline/
backup              create, info, verify, restore. progress: a bar for bytes
acl                 check, explain, hash-token, new-nkey
errors              ls, lookup. error_table: what they show
export              a stream as a table. export_progress: its bar; export_job/: for spark-submit

`demo` and `demo-spark` are in liftlog/demo/.

Modules that declare commands import click and little else at their top; what does the work is
imported when a command runs. So `liftlog --help` is fast and `liftlog consume` loads no server.
"""
