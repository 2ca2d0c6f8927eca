package liftlog.spark;

import java.util.List;
import liftlog.records.Failure;
import liftlog.scan.Losses;
import liftlog.scan.Planning;
import liftlog.scan.Position;
import liftlog.scan.ScanOptions;
import liftlog.scan.ScanRange;
import liftlog.scan.Scans;
import liftlog.scan.StreamState;
import liftlog.scan.Transport;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadAllAvailable;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.ReadMaxBytes;
import org.apache.spark.sql.connector.read.streaming.ReadMaxRows;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.types.StructType;

/**
 * One query ({@code readStream}), on the driver. Spark stores each position before it reads the
 * records up to this position, and after a crash requests the same range again. The transport stays
 * open between micro-batches.
 */
final class StreamQuery implements MicroBatchStream, SupportsTriggerAvailableNow {
    private static final String HINT =
            "begin with a new checkpointLocation, and see docs/how-to/damage.md";

    private final ScanOptions options;
    private final StructType schema;
    private final Opening opening;
    private Transport transport;
    private Long target; // the end of the query with availableNow

    StreamQuery(ScanOptions options, StructType schema) {
        this.options = options;
        this.schema = schema;
        this.opening = Opening.of(options);
    }

    /** The description that Spark shows in the progress of the query. */
    @Override
    public String toString() {
        return "liftlog " + (options.path() == null ? "" : options.path() + " ") + options.stream();
    }

    // --- positions ---

    @Override
    public synchronized Offset initialOffset() {
        StreamState state = state();
        return StreamPosition.of(state, Scans.firstOffset(transport, state, options)).initial();
    }

    @Override
    public Offset deserializeOffset(String json) {
        return StreamPosition.parse(json);
    }

    @Override
    public Offset latestOffset() {
        throw new UnsupportedOperationException("Spark asks with a limit");
    }

    @Override
    public synchronized Offset latestOffset(Offset stored, ReadLimit limit) {
        StreamPosition start = StreamPosition.parse(stored.json());
        StreamState state = state();
        long first = checked(state, start);
        if (start.isInitial() && options.start().is(Position.Kind.EARLIEST)) {
            // Records that were removed before the first micro-batch are no loss.
            first = Math.max(first, state.logStart());
        }
        long end = target == null ? state.end() : Math.min(state.end(), target);
        if (end <= first) {
            // An unchanged position means that there are no new records. The first position must
            // contain its beginning.
            return start.isInitial() ? StreamPosition.of(state, first).from(first) : start;
        }
        if (!(limit instanceof ReadAllAvailable)) {
            end = limited(state, first, end, limit);
        }
        return StreamPosition.of(state, end).from(first);
    }

    /**
     * Returns only one limit, because Spark accepts one limit per source; {@code limited} applies
     * the other one.
     */
    @Override
    public ReadLimit getDefaultReadLimit() {
        if (options.maxOffsetsPerTrigger() != null) {
            return ReadLimit.maxRows(options.maxOffsetsPerTrigger());
        }
        if (options.maxBytesPerTrigger() != null) {
            return ReadLimit.maxBytes(options.maxBytesPerTrigger());
        }
        return ReadLimit.allAvailable();
    }

    @Override
    public synchronized Offset reportLatestOffset() {
        StreamState state = state();
        return StreamPosition.of(state, state.end());
    }

    @Override
    public synchronized void prepareForTriggerAvailableNow() {
        target = state().end();
    }

    private long limited(StreamState state, long first, long end, ReadLimit limit) {
        Long mostOffsets = options.maxOffsetsPerTrigger();
        Long mostBytes = options.maxBytesPerTrigger();
        if (limit instanceof ReadMaxRows rows) {
            mostOffsets = rows.maxRows();
        } else if (limit instanceof ReadMaxBytes bytes) {
            mostBytes = bytes.maxBytes();
        }
        long to = end;
        if (mostOffsets != null) {
            to = Math.min(to, Math.max(first, state.logStart()) + mostOffsets);
        }
        if (mostBytes != null) {
            StreamState measured =
                    transport.measure(state, first, to, Planning.stepOf(mostBytes));
            to = Planning.limitBytes(measured, first, to, mostBytes);
        }
        return to;
    }

    /**
     * Returns the offset of a stored position. Throws Failure if the position belongs to another
     * history of the stream.
     */
    private long checked(StreamState state, StreamPosition position) {
        long offset = position.offset();
        if (!position.identity().equals(state.identity())) {
            throw new Failure(Failure.STALE_INCARNATION, "'" + state.stream()
                    + "' was created again since the query stored its position",
                    "begin with a new checkpointLocation");
        }
        if (offset > state.end()) {
            throw new Failure(Failure.DIVERGED, "the query has read '" + state.stream() + "' up to "
                    + offset + ", but it ends at " + state.end() + ": what followed was lost", HINT);
        }
        if (position.epoch() != null && position.epoch() != state.leaderEpoch()) {
            try {
                transport.checkHistory(offset, position.epoch());
            } catch (Failure error) {
                if (!error.is(Failure.DIVERGED)) {
                    throw error;
                }
                throw new Failure(Failure.DIVERGED, "the query has read '" + state.stream()
                        + "' up to " + offset + ", and not all of that is in the stream any more: "
                        + error.reason(), HINT, error);
            }
        }
        return offset;
    }

    // --- records ---

    @Override
    public synchronized InputPartition[] planInputPartitions(Offset from, Offset to) {
        StreamPosition start = StreamPosition.parse(from.json());
        StreamPosition end = StreamPosition.parse(to.json());
        StreamState state = state();
        long first = checked(state, start);
        long stop = checked(state, end);
        if (start.isInitial() && end.begin() != null) {
            first = end.begin();
        }
        if (first < state.logStart() && first < stop) {
            long following = Math.min(state.logStart(), stop);
            new Losses(state.stream(), options.failOnDataLoss()).removed(first, following);
            first = following;
        }
        long size = options.targetPartitionBytes();
        StreamState measured = transport.measure(state, first, stop, Planning.stepOf(size));
        List<ScanRange> ranges = Planning.split(
                measured, first, stop, size, Opening.slots());
        return ranges.stream().map(RangePartition::new).toArray(InputPartition[]::new);
    }

    @Override
    public synchronized PartitionReaderFactory createReaderFactory() {
        ScanOptions known = transport == null ? options : options.at(transport.nodes());
        return new RangeReaderFactory(known, schema, opening);
    }

    @Override
    public void commit(Offset end) {
        // Spark's checkpoint has it.
    }

    @Override
    public synchronized void stop() {
        if (transport != null) {
            transport.close();
            transport = null;
        }
    }

    private StreamState state() {
        if (transport == null) {
            transport = opening.forPlanning(options);
        }
        return transport.state();
    }
}
