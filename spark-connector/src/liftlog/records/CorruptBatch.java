package liftlog.records;

/** The bytes of a batch contradict their checksum, the format or each other. */
public final class CorruptBatch extends Exception {
    private static final long serialVersionUID = 1L;

    public CorruptBatch(String message) {
        // Readers look for good batches after damage: the stack of each failure is of no use.
        super(message, null, false, false);
    }
}
