package liftlog.spark;

import static java.util.stream.Collectors.joining;

import java.util.Arrays;
import java.util.Map;
import liftlog.scan.Narrowing;
import liftlog.scan.ScanOptions;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;

/** What Spark says of a query before it plans the read: the columns and conditions it uses. */
final class StreamScanBuilder implements SupportsPushDownFilters, SupportsPushDownRequiredColumns {
    private final Map<String, String> given;
    private StructType schema;
    private Narrowing narrowing = Narrowing.NONE;
    private Filter[] used = new Filter[0];

    StreamScanBuilder(StructType schema, Map<String, String> given) {
        this.schema = schema;
        this.given = given;
    }

    /**
     * Spark applies all conditions again. So the read can return rows that do not match, but must
     * never leave out a row that does.
     */
    @Override
    public Filter[] pushFilters(Filter[] filters) {
        narrowing = Conditions.narrowed(narrowing, filters);
        used = Conditions.usable(filters);
        return filters;
    }

    @Override
    public Filter[] pushedFilters() {
        return used;
    }

    @Override
    public void pruneColumns(StructType required) {
        schema = required;
    }

    @Override
    public Scan build() {
        String conditions = Arrays.stream(used).map(Filter::toString).collect(joining(" and "));
        return new StreamScan(schema, given, narrowing, conditions);
    }

    /** The options, narrowed if a batch read is to follow conditions. */
    static ScanOptions batchOptions(Map<String, String> given, Narrowing narrowing) {
        ScanOptions options = ScanOptions.parse(given, false);
        return options.pushdown() ? options.narrowed(narrowing) : options;
    }
}
