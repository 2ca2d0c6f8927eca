"""The life of the daemon: how it is started, steered, watched and stopped.

signals          what each signal makes the daemon do
reloading        certificates, tokens and the ACL read again; checked before anything is swapped
service_manager  what systemd is told
schedule         what is done again and again
embedded         a nats-server of its own
logs             log lines
health           what `/readyz`, `liftlog health` and the web page say
"""
