"""How the daemon is controlled and watched while it runs.

signals          what each signal makes the daemon do
reloading        certificates, tokens and the ACL read again; checked before anything is swapped
service_manager  what systemd is told
embedded         the embedded nats-server
logs             log lines
health           what `/readyz`, `liftlog health` and the web page say
"""
