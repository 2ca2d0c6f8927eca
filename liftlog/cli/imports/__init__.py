"""`liftlog import`: copies messages from other systems into a stream, each message once.

import_records       the command
import_run           stores each message once, in order
import_sources       JetStream, lines, rows of Parquet
whole_headers        a NATS connection that keeps header blocks unchanged
"""
