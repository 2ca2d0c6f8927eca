package liftlog.records;

import java.util.List;

/** The leader epochs of a log: pairs of an epoch and its first offset, both ascending. */
public record Epochs(List<long[]> entries) {
    public static final Epochs NONE = new Epochs(List.of());

    /** Returns the epoch of an offset according to the list; 0 if the list is empty. */
    public long at(long offset) {
        long epoch = 0;
        for (long[] entry : entries) {
            if (entry[1] > offset) {
                break;
            }
            epoch = entry[0];
        }
        return epoch;
    }

    /** Returns the end of the epoch that the list has for an offset. */
    public long endOf(long offset) {
        for (long[] entry : entries) {
            if (entry[1] > offset) {
                return entry[1];
            }
        }
        return Long.MAX_VALUE;
    }
}
