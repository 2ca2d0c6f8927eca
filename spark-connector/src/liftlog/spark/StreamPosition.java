package liftlog.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import liftlog.records.Failure;
import liftlog.scan.StreamState;
import org.apache.spark.sql.connector.read.streaming.Offset;

/**
 * A position in a stream, in the form in which Spark's checkpoint stores it. The Python source
 * stores the same form. It names the history of offsets to which the position belongs. The end of a
 * micro-batch also contains the beginning of the micro-batch, because {@code startingOffset} can
 * mean another offset after a restart.
 */
final class StreamPosition extends Offset {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final String OFFSET = "offset";
    private static final String IDENTITY = "incarnation";
    private static final String EPOCH = "epoch";
    private static final String FROM = "from";
    private static final String INITIAL = "initial";

    private final ObjectNode fields;

    private StreamPosition(ObjectNode fields) {
        this.fields = fields;
    }

    static StreamPosition of(StreamState state, long offset) {
        ObjectNode fields = JSON.createObjectNode();
        fields.put(OFFSET, offset);
        fields.put(IDENTITY, state.identity());
        fields.put(EPOCH, state.leaderEpoch());
        return new StreamPosition(fields);
    }

    static StreamPosition parse(String json) {
        try {
            JsonNode found = JSON.readTree(json);
            if (found instanceof ObjectNode fields && fields.path(OFFSET).canConvertToLong()
                    && fields.has(IDENTITY)) {
                return new StreamPosition(fields);
            }
        } catch (JsonProcessingException error) {
            // reported below
        }
        throw new Failure("LIFTLOG_ERROR",
                json + " in the query's checkpoint is not a position in a liftlog stream",
                "use a separate checkpointLocation for each query");
    }

    /** Returns this position as the end of a micro-batch that begins at {@code first}. */
    StreamPosition from(long first) {
        fields.put(FROM, first);
        return this;
    }

    /** Returns this position as the beginning of a query that has read nothing yet. */
    StreamPosition initial() {
        fields.put(INITIAL, true);
        return this;
    }

    long offset() {
        return fields.path(OFFSET).asLong();
    }

    String identity() {
        return fields.path(IDENTITY).asText();
    }

    /** The leader epoch at that moment; null if it is not known. */
    Long epoch() {
        return fields.path(EPOCH).isIntegralNumber() ? fields.path(EPOCH).asLong() : null;
    }

    /** The beginning of the micro-batch that ends here; null if it is not known. */
    Long begin() {
        return fields.path(FROM).isIntegralNumber() ? fields.path(FROM).asLong() : null;
    }

    boolean isInitial() {
        return fields.has(INITIAL);
    }

    @Override
    public String json() {
        return fields.toString();
    }
}
