"""Control and supervision of the running daemon.

signals          the effect of each signal
reloading        reloads files on SIGHUP; daemon.py lists the parts that have such files
service_manager  notifications to systemd
embedded         the embedded nats-server
logs             log lines
health           the content of `/readyz`, `liftlog health` and the web page's state
"""
