"""`liftlog import`: copies messages from elsewhere into a stream, each once.

import_records       the command
import_run           stores each message once, in order
import_sources       JetStream, lines, rows of Parquet
whole_headers        a NATS connection that keeps header blocks as they are
"""
