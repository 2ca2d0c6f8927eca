"""The `liftlog` command.

main        the command and its subcommands      exit_codes  one table of all exit codes
serve       the daemon                           problems    errors in words, on stderr
stream      create, ls, info, rm                 options     --server, --token, --output, --debug
consume     read a stream                        output      tables, JSON and JSON lines on stdout
pub         publish over NATS                    reference   writes docs/reference/cli.md
offline/    `log dump` and `log verify`          demo/       `liftlog demo`

Modules that declare commands import click and little else at their top; what does the work is
imported when a command runs. So `liftlog --help` is fast and `liftlog consume` loads no server.
"""
