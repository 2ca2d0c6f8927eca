"""Control and supervision of the running daemon.

signals          the effect of each signal
reloading        SIGHUP: each part (daemon.py lists them) is loaded, checked, then replaced
service_manager  notifications to systemd
embedded         the embedded nats-server
logs             log lines
health           the content of `/readyz`, `liftlog health` and the web page's state
"""
