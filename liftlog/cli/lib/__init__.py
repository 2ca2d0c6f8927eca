"""Modules that all commands share.

command_groups   groups that import a command when it is used
options      --server, --output, --set and others             exit_codes  the table of exit codes
output       tables, JSON, YAML, CSV
problems     errors, remarks and questions on stderr          shapes      fields, CSV, templates
suggestions  names from the daemon                            text        makes foreign text safe
contexts     the file of named daemons                        progress    bars for long work
nats_server  finds the NATS server of a command               ranges      offsets and times
record_lines records as lines, or as objects                  conditions  problems of a daemon
setting_options  explains --set if an option is named like a setting
"""
