"""Decides which client of a consumer gets which message, and which changes an ack makes. This
package performs no I/O and reads no clock.

Events go in, instructions and deltas come out. A leader drives a `Consumer`:

    state = ConsumerState(settings, next_offset)      # or decode_snapshot, then apply_delta
    consumer = Consumer(state)
    consumer.take_over(now_ns)                        # unless the state is new
    consumer.pull(PullRequest(reply, batch=100, expires_ns=30 * 10**9), num_pending, now_ns)
    wants = consumer.wants(now_ns, most=500)
    consumer.redeliver(wants.again, records, num_pending, now_ns)     # if there are any
    consumer.deliver(scan, num_pending, now_ns)                       # if wants.first > 0
    verdicts = consumer.acknowledge(acks, now_ns)
    consumer.tick(now_ns)                             # at the time of due_ns, or later
    turn = consumer.end_turn()                        # write turn.delta, then do its instructions

A follower, or a restarted daemon, applies the deltas to its own `ConsumerState` and reaches the
same state. All times and stamps are ns since 1970. Arrays are columns: one entry per message, of
equal length. Each object belongs to one thread.

consumer      the leader: events of a turn, its instructions and its delta
priorities    priority groups: which pull gets the next message
pull          one pull: the request, and its remaining counts
demand        waiting pulls: assigns messages to them, and ends them
inboxes       clients whose pulls were lost with a leader
acks          a chunk of acks, and the verdict on each
records       records that the daemon has read
instructions  the messages that the daemon sends after a turn
statuses      JetStream's statuses, word by word
settings      the settings that decide about deliveries
state         the state that outlives a leader
changes       the changes of a state
pending       the pending messages, in blocks
block         up to 4,096 first deliveries
columns       columns of numbers; contiguous or equal numbers need no array
queue         the messages that are due, in order
codec         deltas as bytes
snapshot      whole states as bytes
wire          numbers as bytes
"""
