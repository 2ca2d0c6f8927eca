package liftlog.scan;

import java.io.Serializable;
import java.util.List;

/**
 * The range of one task: the offsets [first, end) of the stream for which it was planned. If
 * {@code pieces} are given, only these ascending pieces are read; no wanted record lies between
 * them.
 */
public record ScanRange(String stream, String identity, long leaderEpoch, long first, long end,
        List<Extent> pieces, Guard guard)
        implements Serializable {

    /**
     * The protection of the range while it is read.
     *
     * @param files for a compacted stream that is read from files: the files that hold the range
     * @param leaseId the lease of a read from a daemon; null without a lease
     * @param part the number of this range under the lease, from 0
     * @param parts the number of ranges under the lease
     * @param mark the mark of a compacted stream that is read from a daemon; null otherwise
     * @param cleanedBelow for a stream without compaction: the end of its last compaction; -1 for a
     * compacted stream
     */
    public record Guard(
            List<String> files, String leaseId, int part, int parts, Mark mark, long cleanedBelow)
            implements Serializable {
        public static final Guard NONE = new Guard(null, null, 0, 0, null, -1);

        public static Guard ofFiles(List<String> files) {
            return new Guard(files, null, 0, 0, null, -1);
        }

        public static Guard cleanedBelow(long offset) {
            return new Guard(null, null, 0, 0, null, offset);
        }
    }

    /**
     * Limits within which compaction does not change the result of a read. The mark holds while
     * compaction has processed no record from {@code end} on, and has removed no further
     * tombstones.
     */
    public record Mark(long end, long tombstonesRemovedBelow) implements Serializable {}

    public ScanRange with(Guard other) {
        return new ScanRange(stream, identity, leaderEpoch, first, end, pieces, other);
    }

    /** Returns the same range with only one of its pieces. */
    public ScanRange only(Extent piece) {
        return new ScanRange(stream, identity, leaderEpoch, piece.first(), piece.next(),
                List.of(piece), guard);
    }
}
