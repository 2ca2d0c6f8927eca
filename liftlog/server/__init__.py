"""The daemon. Its folders:

ingest       from the NATS connection to runs of messages
pull         the pull API's server
http, web    the HTTP port: probes, metrics, the HTTP API, the web page
checkpoints  where consumers go on, in the stream `_offsets`
cleaning     compaction, re-batching and scrubbing, in a process of their own
metrics      what is counted, and how Prometheus is told

Its life:

daemon           puts the parts together, runs, stops cleanly
signals, reloading, service_manager   what others want of it, and what systemd is told
schedule, housekeeping, side_by_side  what is done again and again, for many streams at once
health, disk_probe, loop_watch, sync_times   how it is
clock_guard      a wall clock that jumps makes nothing old
disk_reserve     room for the day when the disk is full
logs             log lines
embedded, child_processes   processes that end with it

Its streams:

broker           all of them: found, created, described, deleted
administration, lease_keeping   ... changed and held while they run
stream_maker     how they come to life, with stream_opening and dedupe_restoring for their files
attachments, intake   their subscriptions, and what they share on the way in
neighbours       what they have to know of each other
possible_losses  when messages may have passed them by
stream_settings, stream_configs, stream_metadata   their settings: compared, used, stored
stream_retention   what of one of them goes, and what holds it
stream_description, stream_observations   one of them, from outside

One stream:

stream_host      its log, its sequencer, and the commits between them
commit_policy    whether a commit may run inside the event loop
writer_pool      ... or has a thread
group_writing, compressing   how a group is written
maintenance, exclusive   calls that must not meet a commit
own_records      who waits for what the daemon itself stored
watermark_waiters   who waits for what is committed
"""
