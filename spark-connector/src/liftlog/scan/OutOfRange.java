package liftlog.scan;

import liftlog.records.Failure;

/** The records at an offset were removed, or do not exist yet. */
public final class OutOfRange extends Failure {
    private static final long serialVersionUID = 1L;

    private final long logStart;

    public OutOfRange(String reason, String hint, long logStart) {
        super(OFFSET_OUT_OF_RANGE, reason, hint);
        this.logStart = logStart;
    }

    public long logStart() {
        return logStart;
    }
}
