"""All streams: found, made, changed, held, tidied.

broker           all of them: found, created, described, deleted
administration   changed while they run
settings, metadata   their settings: compared, stored
making, opening, dedupe_restoring   how they come to life
attachments      their subscriptions
intake           what they share on the way in
leases           what holds retention back for a reader
retention        what of one stream goes, and what holds it
housekeeping, side_by_side   retention, rolling and recovery points, a few streams at a time
neighbours       what streams have to know of each other
possible_losses  when messages may have passed them by
troubles         what is wrong with them, for health and the web page
description      one of them, as clients see it
"""
