package liftlog.spark;

import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import liftlog.records.Failure;
import liftlog.scan.ScanOptions;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The data source {@code format("liftlog")}, if this jar is on the class path. Spark prefers this
 * source to the Python source of the same name. Both have the same options, columns and errors.
 */
public final class LiftlogSource implements TableProvider, DataSourceRegister {
    @Override
    public String shortName() {
        return "liftlog";
    }

    @Override
    public StructType inferSchema(CaseInsensitiveStringMap options) {
        return RecordColumns.schema(ScanOptions.columnsOf(options.asCaseSensitiveMap()));
    }

    /**
     * Returns true, so that Spark passes a schema of the user to {@code getTable}, which throws an
     * error with the remedy.
     */
    @Override
    public boolean supportsExternalMetadata() {
        return true;
    }

    @Override
    public Table getTable(
            StructType schema, Transform[] partitioning, Map<String, String> properties) {
        if (!schema.equals(RecordColumns.schema(ScanOptions.columnsOf(properties)))) {
            throw Failure.invalid("the schema of a stream is fixed; .schema(...) cannot change it,"
                    + " and Spark does not write to streams",
                    "choose the columns with the option columns; to write, publish to NATS");
        }
        return new StreamTable(schema, properties);
    }

    /** A stream as a table with the selected columns. */
    private record StreamTable(StructType type, Map<String, String> properties)
            implements Table, SupportsRead {
        @Override
        public Column[] columns() {
            return Arrays.stream(type.fields())
                    .map(one -> Column.create(one.name(), one.dataType(), one.nullable()))
                    .toArray(Column[]::new);
        }

        @Override
        public String name() {
            return "liftlog";
        }

        @Override
        public Set<TableCapability> capabilities() {
            return Set.of(TableCapability.BATCH_READ, TableCapability.MICRO_BATCH_READ);
        }

        @Override
        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            Map<String, String> given = new HashMap<>(properties);
            given.keySet().removeIf(options::containsKey);
            given.putAll(options.asCaseSensitiveMap());
            return new StreamScanBuilder(type, given);
        }
    }
}
