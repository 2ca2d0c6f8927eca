package liftlog.spark;

import liftlog.records.RecordBatch;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomSumMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** The amount that one task has read so far, for Spark's web page and listeners. */
public final class ReadMetrics {
    private long batches;
    private long bytes;
    private long records;

    ReadMetrics() {}

    void note(RecordBatch batch) {
        batches++;
        bytes += batch.header().length();
        records += batch.shownCount();
    }

    CustomTaskMetric[] values(long lost) {
        return new CustomTaskMetric[] {
            new Value(Batches.NAME, batches),
            new Value(Bytes.NAME, bytes),
            new Value(Records.NAME, records),
            new Value(Lost.NAME, lost),
        };
    }

    static CustomMetric[] supported() {
        return new CustomMetric[] {new Batches(), new Bytes(), new Records(), new Lost()};
    }

    private record Value(String name, long value) implements CustomTaskMetric {}

    // Spark creates objects of these classes by the names of the classes.

    /** Number of record batches. */
    public static final class Batches extends CustomSumMetric {
        static final String NAME = "liftlogBatches";

        @Override
        public String name() {
            return NAME;
        }

        @Override
        public String description() {
            return "record batches read";
        }
    }

    /** The bytes of the batches, as they are stored or as a daemon has made them. */
    public static final class Bytes extends CustomSumMetric {
        static final String NAME = "liftlogBytes";

        @Override
        public String name() {
            return NAME;
        }

        @Override
        public String description() {
            return "bytes of batches read";
        }
    }

    /** Number of records before conditions are applied. */
    public static final class Records extends CustomSumMetric {
        static final String NAME = "liftlogRecords";

        @Override
        public String name() {
            return NAME;
        }

        @Override
        public String description() {
            return "records looked at";
        }
    }

    /** Number of skipped offsets, with {@code failOnDataLoss=false}. */
    public static final class Lost extends CustomSumMetric {
        static final String NAME = "liftlogLostOffsets";

        @Override
        public String name() {
            return NAME;
        }

        @Override
        public String description() {
            return "offsets skipped as damaged or removed";
        }
    }
}
