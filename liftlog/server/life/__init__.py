"""How the daemon is controlled and watched while it runs.

signals          what each signal makes the daemon do
reloading        SIGHUP: each part (daemon.py says which) is loaded, checked, then replaced
service_manager  what systemd is told
embedded         the embedded nats-server
logs             log lines
health           what `/readyz`, `liftlog health` and the web page say
"""
