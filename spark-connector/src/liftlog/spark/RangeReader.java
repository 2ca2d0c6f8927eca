package liftlog.spark;

import java.util.List;
import java.util.Set;
import liftlog.records.RecordBatch;
import liftlog.scan.BatchSource;
import liftlog.scan.Columns;
import liftlog.scan.Losses;
import liftlog.scan.NewestKeys;
import liftlog.scan.Rows;
import liftlog.scan.ScanOptions;
import liftlog.scan.ScanRange;
import liftlog.scan.Transport;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * Reads the rows of one range, one record batch at a time. With {@code compact} the range is read
 * twice. The first pass finds the newest record of each key, so only the keys are held in memory.
 */
final class RangeReader implements PartitionReader<ColumnarBatch> {
    private final Transport transport;
    private final RecordBatch batch = new RecordBatch();
    private final Rows rows;
    private final RecordColumn[] columns;
    private final ColumnarBatch shown;
    private final Losses losses;
    private final ReadMetrics metrics = new ReadMetrics();
    private BatchSource source;

    RangeReader(ScanOptions options, StructType schema, Opening opening, ScanRange range) {
        transport = opening.forReading(options);
        rows = new Rows(options);
        columns = RecordColumns.vectors(schema, range.stream(), rows);
        ColumnVector[] vectors = columns.clone();
        shown = new ColumnarBatch(vectors);
        losses = new Losses(range.stream(), options.failOnDataLoss());
        try {
            Set<String> wanted = rows.columns(options.compact());
            if (options.compact()) {
                rows.only(newest(range, wanted));
            }
            wanted.addAll(List.of(schema.fieldNames()));
            wanted.remove(Columns.STREAM);
            source = transport.batches(range, wanted, losses, true, rows.selects());
        } catch (RuntimeException error) {
            transport.close();
            throw error;
        }
    }

    private NewestKeys newest(ScanRange range, Set<String> wanted) {
        NewestKeys found = new NewestKeys();
        try (BatchSource first = transport.batches(range, wanted, losses, false, rows.selects())) {
            while (first.next(batch)) {
                rows.select(batch);
                found.note(batch, rows);
            }
        }
        return found;
    }

    @Override
    public boolean next() {
        while (source.next(batch)) {
            int count = rows.select(batch);
            if (count > 0 && !source.complete(batch, rows)) {
                continue;
            }
            metrics.note(batch);
            if (count > 0) {
                for (RecordColumn column : columns) {
                    column.show(batch);
                }
                shown.setNumRows(count);
                return true;
            }
        }
        return false;
    }

    @Override
    public CustomTaskMetric[] currentMetricsValues() {
        return metrics.values(losses.skipped());
    }

    @Override
    public ColumnarBatch get() {
        return shown;
    }

    @Override
    public void close() {
        TaskContext task = TaskContext.get();
        boolean mayBeRepeated = task != null && (task.isFailed() || task.isInterrupted());
        if (source != null) {
            if (!mayBeRepeated) {
                source.stop();
            }
            source.close();
        }
        transport.close();
        batch.close();
    }
}
