package liftlog.records;

/** The records [first, next) cannot be read. */
public final class CorruptRange extends Failure {
    private static final long serialVersionUID = 1L;

    private final long first;
    private final long next;

    public CorruptRange(String reason, String hint, long first, long next) {
        super(CORRUPT_RANGE, reason, hint);
        this.first = first;
        this.next = next;
    }

    public long first() {
        return first;
    }

    public long next() {
        return next;
    }
}
