package liftlog.scan;

import liftlog.records.CorruptRange;
import liftlog.records.Failure;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** What a read does about records that it cannot get: it fails, or logs a warning and continues. */
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

    /** Retention has removed the records [first, next). */
    public void removed(long first, long next) {
        if (fail) {
            throw new OutOfRange("retention has removed the records [" + first + ", " + next
                    + ") of '" + stream + "'", HINT, next);
        }
        skip("removed", first, next);
    }

    /** The records [first, next) are damaged or lost. */
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

    /** How many offsets were skipped. */
    public long skipped() {
        return skipped;
    }

    private void skip(String what, long first, long next) {
        skipped += next - first;
        LOG.warn("{}-range-skipped stream={} first_offset={} next_offset={}", what, stream, first, next);
    }
}
