"""All streams: found, made, changed, held, kept in order.

broker           all of them: found, created, described, deleted
administration   changed while they run
settings         their settings: compared, merged, stored
making           how they come to life, from the configuration or from disk
dedupe_restoring the message ids that one remembers, after a start
attachments      their subscriptions, and when messages may have been missed
intake           what they share on the way in
leases           what holds retention back for a reader
retention        what of one stream is deleted, and what holds it
housekeeping     retention, rolling and recovery points, a few streams at a time
neighbours       what streams have to know of each other
description      what is said of them: descriptions, and what is wrong
"""
