package liftlog.scan;

import liftlog.records.RecordBatch;

/** The checked batches of one range. */
public interface BatchSource extends AutoCloseable {
    /**
     * Shows the next batch in {@code into}, without records outside the range; false at the end. Erased
     * records are hidden in it, perhaps all. Its bytes change with the next call.
     */
    boolean next(RecordBatch into);

    /**
     * Makes the values of these rows of the batch readable: where they are few, {@code next} shows a
     * batch without them. False: {@code next} shows the batch again, with all values, unless it is
     * damaged.
     */
    default boolean complete(RecordBatch shown, Rows rows) {
        return true;
    }

    /** No more batches are needed, and the range will not be read again. */
    default void stop() {}

    @Override
    void close();
}
