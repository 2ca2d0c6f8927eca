package liftlog.records;

/**
 * The place of the next batch of a walk. Complete batches with correct checksums can be in the
 * wrong place. Only their headers show this: in a log, batches cover the offsets without gaps, and
 * leader epochs never decrease.
 */
public final class Place {
    private final long end;
    private final Epochs epochs;
    private long offset;
    private long epoch;
    private long epochEnd;

    /** No batch may extend beyond {@code end}. */
    public Place(long offset, long end, Epochs epochs) {
        this.end = end;
        this.epochs = epochs;
        goOnAt(offset);
    }

    public Place copy() {
        Place same = new Place(offset, end, epochs);
        same.epoch = epoch;
        same.epochEnd = epochEnd;
        return same;
    }

    public long offset() {
        return offset;
    }

    /**
     * Returns the epoch of the offset according to the list; without a list, the epoch of the
     * previous batch.
     */
    public long sureEpoch() {
        return epochs.entries().isEmpty() ? epoch : epochs.at(offset);
    }

    /** Continues after damage. The epoch of the batches before the damage is no longer used. */
    public void goOnAt(long following) {
        offset = following;
        epoch = epochs.at(following);
        epochEnd = epochs.endOf(following);
    }

    public boolean holds(BatchHeader header) {
        return header.baseOffset() == offset
                && header.leaderEpoch() >= epoch
                && header.nextOffset() <= end;
    }

    public void passBy(BatchHeader header) {
        offset = header.nextOffset();
        epoch = header.leaderEpoch();
        if (offset >= epochEnd) {
            epoch = Math.max(epoch, epochs.at(offset));
            epochEnd = epochs.endOf(offset);
        }
    }
}
