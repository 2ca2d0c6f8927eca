"""Who asks, and whether they may: for the pull port and for HTTP.

origins          where a client comes from, as the kernel says
authentication   who a client is
guessing         how often a client may be wrong about a token
gate             every request passes here: names, authorization
audit            who logged in, who was refused what, who changed something
"""
