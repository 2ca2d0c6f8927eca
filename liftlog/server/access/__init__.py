"""Identifies clients and checks what they may do, for the pull port and for HTTP.

origins          where a client comes from, as the kernel reports it
authentication   which principal a client is
guessing         limits on wrong tokens (the connection delays the answer to each)
gate             every request passes here: names, authorization
audit            logins, refusals, and operations that change something
"""
