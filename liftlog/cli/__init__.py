"""The `liftlog` command.

main        the entry point
root        the table of commands; how each ends: its exit code, Ctrl-C, a closed pipe
lib/        shared by all commands: options, output, problems, exit codes

A module or a folder for each command, and beside it what it is made of:

serve, config       the daemon; its configuration. daemon_signals: reload and drain
stream              create, ls, info, update, truncate and others; lease has the leases,
                    stream_words describes a stream
consuming/          consume, offsets, group
pub                 publish; pub_run does the work
info, top, health   the daemon as it is. top_view: rows and keys of top
clustering/         its cluster
doctor/             problems of this machine that would keep the daemon from its work
logs/               `log` and `backup`
acl                 check, explain, hash-token, new-nkey
errors, docs        meanings of errors; pages of the documentation
imports/, exports/  `import` and `export`; export_job/ is for spark-submit
context             names for daemons
completion          scripts for the shell

`demo` and `demo-cluster` are in liftlog/demo/.

`liftlog --help` and completion import no command: the table in `root` has their short helps. A
command's module imports at its top what its help and its output need. The client, the settings,
the log, the daemon and Spark take longer to import than everything else together, and the function
that needs one imports it: `liftlog COMMAND --help` does not wait for them.
"""
