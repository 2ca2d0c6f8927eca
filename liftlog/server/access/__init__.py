"""Identifies clients and checks what they may do, for the pull port and for HTTP.

origins          where a client comes from, as the kernel reports it
authentication   identifies the principal of a client
guessing         limits wrong tokens (the connection also delays its answer to a wrong token)
gate             checks the names and the authorization of every request
audit            logs logins, refusals, and operations that change something
"""
