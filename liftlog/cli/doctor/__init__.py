"""`liftlog doctor`: what of this machine would keep a daemon from its work, and what to do.

command   the click command        findings  what one check says
machine   disk, files, clock       network   ports, NATS, the daemon that runs
setup     configuration, streams, packages, certificate
"""
