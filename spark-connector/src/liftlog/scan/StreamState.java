package liftlog.scan;

import java.util.List;

/**
 * A stream at one moment. Everything below {@code end} is committed; {@code identity} names one
 * history of offsets; the extents tile the offsets, oldest first.
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
