"""Who asks, and whether they may: for the pull port and for HTTP.

origins          where a client comes from, as the kernel reports it
authentication   who a client is
guessing         how many wrong tokens a client may present
gate             every request passes here: names, authorization
audit            logins, refusals, and operations that change something
"""
