package liftlog.scan;

import liftlog.records.RecordBatch;

/** The checked batches of one range. */
public interface BatchSource extends AutoCloseable {
    /**
     * Shows the next batch in {@code into}, without records outside the range; false at the end. Its
     * bytes change with the next call.
     */
    boolean next(RecordBatch into);

    @Override
    void close();
}
