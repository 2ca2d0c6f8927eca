package liftlog.scan;

import liftlog.records.RecordBatch;

/** The checked batches of one range. */
public interface BatchSource extends AutoCloseable {
    /**
     * Shows the next batch in {@code into}, without records outside of the range. Returns false at
     * the end. Erased records are hidden, possibly all records of a batch. The bytes of a batch
     * change with the next call.
     */
    boolean next(RecordBatch into);

    /**
     * Makes the values of these rows of the batch readable. If only few rows are wanted,
     * {@code next} shows a batch without values. If this method returns false, {@code next} shows
     * the batch again, with all values, unless the batch is damaged.
     */
    default boolean complete(RecordBatch shown, Rows rows) {
        return true;
    }

    /** Called when no more batches are needed and the range will not be read again. */
    default void stop() {}

    @Override
    void close();
}
