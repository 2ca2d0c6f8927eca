package liftlog.scan;

import java.util.List;
import java.util.Set;

/** What plans and reads a stream. Methods throw Failure. */
public interface Transport extends AutoCloseable {
    StreamState state();

    /** The offset of the first record stamped at or after that time; without one, the end. */
    long offsetAt(long timestampNs);

    /** Checks that the history before an offset in that epoch is unchanged. Throws DIVERGED. */
    void checkHistory(long offset, long leaderEpoch);

    /**
     * Makes sure that a read from {@code first} on sees one state of the stream, although it is read
     * in parts; null: from the first record that retention leaves. Returns the state to plan with.
     */
    StreamState hold(StreamState state, Long first);

    /** The same state, with extents of about {@code stepBytes} each for [first, end). */
    StreamState measure(StreamState state, long first, long end, long stepBytes);

    /**
     * As {@code measure}, but what holds no wanted record has the size 0, as far as that is known.
     * {@code inParts}: where batches are read in parts, the other sizes are those of the parts.
     */
    StreamState find(StreamState state, long first, long end, long stepBytes, Narrowing wanted,
            boolean inParts);

    /** How many bytes between two pieces of a range are rather read than skipped. */
    long worthReading();

    /** The ranges, with what their tasks need to know of that protection. */
    List<ScanRange> held(List<ScanRange> planned);

    /**
     * The batches with exactly the records of a range; {@code isLast} unless the caller will read
     * the range again; {@code selects} if perhaps not all records of a batch become rows. Of columns that are not named, only the marks of tombstones are sure to be
     * there.
     */
    BatchSource batches(ScanRange range, Set<String> columns, Losses losses, boolean isLast,
            boolean selects);

    /** The known addresses of nodes that can be asked; empty where files are read. */
    default List<Address> nodes() {
        return List.of();
    }

    @Override
    void close();
}
