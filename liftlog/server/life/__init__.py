"""How the daemon is controlled and watched while it runs.

signals          what each signal makes the daemon do
reloading        SIGHUP: certificates and the ACL are read again, and checked before any is replaced
service_manager  what systemd is told
embedded         the embedded nats-server
logs             log lines
health           what `/readyz`, `liftlog health` and the web page say
"""
