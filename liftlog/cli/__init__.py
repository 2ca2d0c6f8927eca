"""The `liftlog` command.

main        the entry point
root        the table of commands; handles the end of each: exit code, Ctrl-C, a closed pipe
lib/        shared by all commands: options, output, problems, exit codes

Each command is a module or a folder, with its helper modules next to it:

serve, config       the daemon; its configuration. daemon_signals: reload and drain
stream              create, ls, info, update, truncate and others; lease has the leases,
                    stream_words describes a stream
erasing/            erase records, list erasures, prove that their bytes are gone
consuming/          consume, offsets, group
pub                 publish; pub_run does the work
info, top, health   the state of the daemon. top_view: rows and keys of top
clustering/         the cluster of a daemon
doctor/             problems of this machine that would keep the daemon from working
logs/               `log` and `backup`
acl                 check, explain, hash-token, new-nkey
errors, docs        meanings of errors; pages of the documentation
imports/, exports/  `import` and `export`; export_job/ is for spark-submit
context             names for daemons
completion          scripts for the shell

`demo` and `demo-cluster` are in liftlog/demo/.

`liftlog --help` and completion import no command: the table in `root` contains the short help of
each. A command's module imports at its top only the modules that its help and its output need. The
client, the settings, the log, the daemon and Spark take longer to import than everything else
together. Only the functions that need these packages import them, so that `liftlog COMMAND --help`
is fast.
"""
