package liftlog.records;

/** The bytes of a batch contradict their checksum, the format or each other. */
public final class CorruptBatch extends Exception {
    private static final long serialVersionUID = 1L;

    public CorruptBatch(String message) {
        // Without a stack trace: readers search for good batches after damage, and many attempts
        // fail.
        super(message, null, false, false);
    }
}
