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

/** Receives the columns and conditions of a query from Spark before the read is planned. */
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
     * Accepts conditions. Spark applies all of them again. So the read can return rows that do not
     * match, but must never omit a row that matches.
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

    /** Returns the options, narrowed if a batch read uses conditions. */
    static ScanOptions batchOptions(Map<String, String> given, Narrowing narrowing) {
        ScanOptions options = ScanOptions.parse(given, false);
        return options.pushdown() ? options.narrowed(narrowing) : options;
    }
}
