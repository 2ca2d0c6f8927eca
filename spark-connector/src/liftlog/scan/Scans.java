package liftlog.scan;

import java.util.List;
import liftlog.records.Failure;

/** Plans one read: its offsets, and the division into ranges. */
public final class Scans {
    private Scans() {}

    /**
     * Plans the ranges of a batch read, for the present state of the stream and for this number of
     * concurrent tasks.
     */
    public static List<ScanRange> plan(Transport transport, ScanOptions options, int slots) {
        StreamState state = transport.state();
        long first = firstOffset(transport, state, options);
        boolean held = false;
        while (!held) {
            try {
                boolean earliest = options.start().is(Position.Kind.EARLIEST);
                state = transport.hold(state, earliest ? null : first);
                first = earliest ? state.logStart() : first;
                held = true;
            } catch (OutOfRange error) {
                long before = first;
                state = transport.state();
                first = firstOffset(transport, state, options);
                if (first <= before) { // otherwise retention moved the log start: try again
                    throw error;
                }
            }
        }
        long end = endOffset(transport, state, options);
        if (options.start().is(Position.Kind.OFFSET)
                && options.end().is(Position.Kind.OFFSET) && first > end) {
            throw Failure.invalid("startingOffset=" + first + " lies after endingOffset=" + end);
        }
        Narrowing narrowing = options.narrowing();
        first = Math.max(first, narrowing.first());
        end = Math.min(end, narrowing.end());
        if (narrowing.beginsAtTime() && first < end) {
            first = Math.max(first, offsetAt(transport, narrowing.notBeforeUs()));
        }
        long target = options.targetPartitionBytes();
        long step = Planning.stepOf(target);
        Narrowing wanted = options.wanted();
        if (wanted.selects() && first < end) {
            // With compact, the size of a range limits the work of a task and also its memory for
            // keys.
            boolean inParts =
                    !options.compact() && (wanted.subjects() != null || wanted.keys() != null);
            state = transport.find(state, first, end, step, wanted, inParts);
            return transport.held(
                    Planning.select(state, first, end, target, slots, transport.worthReading()));
        }
        state = transport.measure(state, first, end, step);
        return transport.held(Planning.split(state, first, end, target, slots));
    }

    /** Returns the offset at which the read begins, between the log start and the end. */
    public static long firstOffset(Transport transport, StreamState state, ScanOptions options) {
        long start = resolve(transport, state, options.start());
        if (start > state.end()) {
            throw Failure.invalid("startingOffset=" + start + " is beyond the end of '"
                    + state.stream() + "', " + state.end());
        }
        if (start < state.logStart() && options.failOnDataLoss()) {
            throw new OutOfRange("'" + state.stream() + "' begins at " + state.logStart()
                    + ": retention has removed the records from startingOffset=" + start + " on",
                    "use startingOffset=earliest, or set failOnDataLoss=false", state.logStart());
        }
        return Math.max(start, state.logStart());
    }

    private static long endOffset(Transport transport, StreamState state, ScanOptions options) {
        long end = resolve(transport, state, options.end());
        if (options.end().is(Position.Kind.OFFSET) && end > state.end()) {
            throw Failure.invalid("endingOffset=" + end + " is beyond the high watermark of '"
                    + state.stream() + "', " + state.end() + ": records there can still change",
                    "use endingOffset=latest, or wait until these records are committed");
        }
        return Math.min(end, state.end());
    }

    private static long resolve(Transport transport, StreamState state, Position position) {
        return switch (position.kind()) {
            case EARLIEST -> state.logStart();
            case LATEST -> state.end();
            case OFFSET -> position.number();
            case TIME -> Math.min(
                    Math.max(offsetAt(transport, position.number()), state.logStart()),
                    state.end());
        };
    }

    private static long offsetAt(Transport transport, long us) {
        long most = Long.MAX_VALUE / 1000;
        return transport.offsetAt(Math.max(0, Math.min(us, most)) * 1000);
    }
}
