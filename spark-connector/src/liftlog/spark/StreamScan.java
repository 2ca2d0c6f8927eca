package liftlog.spark;

import java.util.List;
import java.util.Map;
import liftlog.scan.Address;
import liftlog.scan.Narrowing;
import liftlog.scan.ScanOptions;
import liftlog.scan.ScanRange;
import liftlog.scan.Scans;
import liftlog.scan.Transport;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;

/** A planned read, as a batch or as a streaming query. */
final class StreamScan implements Scan, Batch {
    private final StructType schema;
    private final Map<String, String> given;
    private final Narrowing narrowing;
    private final String conditions; // for people
    private InputPartition[] planned;
    private List<Address> nodes = List.of();

    StreamScan(StructType schema, Map<String, String> given, Narrowing narrowing,
            String conditions) {
        this.schema = schema;
        this.given = given;
        this.narrowing = narrowing;
        this.conditions = conditions;
    }

    @Override
    public StructType readSchema() {
        return schema;
    }

    @Override
    public String description() {
        String from = given.entrySet().stream()
                .filter(one -> List.of("stream", "server", "path")
                        .contains(one.getKey().toLowerCase(java.util.Locale.ROOT)))
                .map(one -> one.getKey() + "=" + one.getValue())
                .sorted()
                .reduce((a, b) -> a + " " + b)
                .orElse("");
        return "liftlog " + from + " columns=" + String.join(",", schema.fieldNames())
                + (conditions.isEmpty() ? "" : " pushed=" + conditions);
    }

    @Override
    public ColumnarSupportMode columnarSupportMode() {
        return ColumnarSupportMode.SUPPORTED; // known without planning
    }

    @Override
    public CustomMetric[] supportedCustomMetrics() {
        return ReadMetrics.supported();
    }

    @Override
    public Batch toBatch() {
        return this;
    }

    @Override
    public MicroBatchStream toMicroBatchStream(String checkpointLocation) {
        return new StreamQuery(ScanOptions.parse(given, true), schema);
    }

    /**
     * Plans the ranges once. Spark calls this method for each action, and may call it twice for one
     * action.
     */
    @Override
    public synchronized InputPartition[] planInputPartitions() {
        if (planned == null) {
            ScanOptions options = StreamScanBuilder.batchOptions(given, narrowing);
            Opening opening = Opening.of(options);
            try (Transport transport = opening.forPlanning(options)) {
                List<ScanRange> ranges = Scans.plan(transport, options, Opening.slots());
                nodes = transport.nodes();
                planned = ranges.stream().map(RangePartition::new).toArray(InputPartition[]::new);
            }
        }
        return planned.clone();
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        planInputPartitions(); // also gets the nodes of the cluster
        ScanOptions options = StreamScanBuilder.batchOptions(given, narrowing).at(nodes);
        return new RangeReaderFactory(options, schema, Opening.of(options));
    }
}
