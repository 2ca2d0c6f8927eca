package liftlog.scan;

import liftlog.records.CorruptRange;
import liftlog.records.Failure;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Handles records that cannot be read: throws an error, or logs a warning and continues. */
public final class Losses {
    private static final Logger LOG = LoggerFactory.getLogger("liftlog.spark");
    private static final String HINT = "set failOnDataLoss=false to continue without them";

    private final String stream;
    private final boolean fail;
    private long skipped;

    public Losses(String stream, boolean fail) {
        this.stream = stream;
        this.fail = fail;
    }

    /** Handles records [first, next) that retention has removed. */
    public void removed(long first, long next) {
        if (fail) {
            throw new OutOfRange("retention has removed the records [" + first + ", " + next
                    + ") of '" + stream + "'", HINT, next);
        }
        skip("removed", first, next);
    }

    /** Handles records [first, next) that are damaged or lost. */
    public void damaged(long first, long next) {
        damaged(new CorruptRange("the records [" + first + ", " + next + ") are damaged or lost",
                HINT, first, next));
    }

    public void damaged(CorruptRange error) {
        if (fail) {
            throw new CorruptRange(error.reason(), HINT, error.first(), error.next());
        }
        skip("damaged", error.first(), error.next());
    }

    /** Returns the number of skipped offsets. */
    public long skipped() {
        return skipped;
    }

    private void skip(String what, long first, long next) {
        skipped += next - first;
        LOG.warn("{}-range-skipped stream={} first_offset={} next_offset={}", what, stream, first, next);
    }
}
