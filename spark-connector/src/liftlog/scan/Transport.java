package liftlog.scan;

import java.util.List;
import java.util.Set;

/** Plans and reads one stream. Methods throw Failure. */
public interface Transport extends AutoCloseable {
    StreamState state();

    /**
     * Returns the offset of the first record with a timestamp at or after this time. If there is no
     * such record, returns the end.
     */
    long offsetAt(long timestampNs);

    /**
     * Checks that the history before an offset, in this epoch, has not changed. Throws DIVERGED.
     */
    void checkHistory(long offset, long leaderEpoch);

    /**
     * Protects the stream, so that a read in parts from {@code first} on returns the records of one
     * state of the stream. If {@code first} is null, the read begins at the first record that
     * retention would keep. Returns the state for planning.
     */
    StreamState hold(StreamState state, Long first);

    /** Returns the same state, with extents of about {@code stepBytes} each for [first, end). */
    StreamState measure(StreamState state, long first, long end, long stepBytes);

    /**
     * Like {@code measure}, but extents that certainly hold no wanted record have the size 0.
     * {@code inParts} means that the read may read parts of batches; the sizes are then the sizes
     * of these parts.
     */
    StreamState find(StreamState state, long first, long end, long stepBytes, Narrowing wanted,
            boolean inParts);

    /**
     * Returns the largest gap, in bytes, between two pieces of a range for which one read of both
     * pieces is faster than two reads.
     */
    long worthReading();

    /** Adds to the ranges the data that tasks need for the protection. */
    List<ScanRange> held(List<ScanRange> planned);

    /**
     * Returns the batches with exactly the records of a range. {@code isLast} is true unless the
     * caller will read the range again. {@code selects} is true if some records of a batch may not
     * become rows. Of columns that are not named, only the marks of tombstones are certainly
     * present.
     */
    BatchSource batches(ScanRange range, Set<String> columns, Losses losses, boolean isLast,
            boolean selects);

    /**
     * Returns the known addresses of nodes that can serve the read; empty if the read uses files.
     */
    default List<Address> nodes() {
        return List.of();
    }

    @Override
    void close();
}
