package liftlog.scan;

import java.util.List;

/**
 * The state of a stream at one moment. All records below {@code end} are committed.
 * {@code identity} identifies one history of offsets. The extents cover the offsets without gaps,
 * oldest first.
 */
public record StreamState(
        String stream,
        String identity,
        long leaderEpoch,
        long logStart,
        long end,
        List<Extent> extents) {

    public StreamState withExtents(List<Extent> others) {
        return new StreamState(stream, identity, leaderEpoch, logStart, end, others);
    }
}
