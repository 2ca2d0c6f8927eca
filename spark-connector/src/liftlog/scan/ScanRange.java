package liftlog.scan;

import java.io.Serializable;
import java.util.List;

/**
 * What one task reads: [first, end) of the stream for which it was planned, or of that only the
 * pieces, which ascend; what lies between them holds no wanted record.
 */
public record ScanRange(String stream, String identity, long leaderEpoch, long first, long end,
        List<Extent> pieces, Guard guard)
        implements Serializable {

    /**
     * What protects the range while it is read.
     *
     * @param files for a compacted stream that is read from files: those that hold the range
     * @param leaseId the lease of a read from a daemon, or null
     * @param part the number of this range under the lease, from 0
     * @param parts how many ranges it has
     * @param mark for a compacted stream that is read from a daemon
     * @param cleanedBelow for a stream without compaction: how far it was once compacted, or -1
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
     * Within these limits compaction does not change what a read finds: it has considered nothing
     * from {@code end} on, and has removed no tombstones since.
     */
    public record Mark(long end, long tombstonesRemovedBelow) implements Serializable {}

    public ScanRange with(Guard other) {
        return new ScanRange(stream, identity, leaderEpoch, first, end, pieces, other);
    }

    /** The same for one of its pieces. */
    public ScanRange only(Extent piece) {
        return new ScanRange(stream, identity, leaderEpoch, piece.first(), piece.next(),
                List.of(piece), guard);
    }
}
