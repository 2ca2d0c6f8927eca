package liftlog.spark;

import java.util.Arrays;
import liftlog.records.Failure;
import liftlog.records.RecordBatch;
import liftlog.scan.Columns;
import liftlog.scan.Rows;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** The columns of a read in the form of Spark: types, and vectors over a record batch. */
final class RecordColumns {
    private static final StructType HEADER = new StructType()
            .add("key", DataTypes.StringType)
            .add("value", DataTypes.BinaryType);

    private RecordColumns() {}

    /** Returns the schema. Keys and values can be null, other columns cannot. */
    static StructType schema(Iterable<String> names) {
        StructType schema = new StructType();
        for (String name : names) {
            boolean nullable = name.equals(Columns.KEY) || name.equals(Columns.VALUE);
            schema = schema.add(name, type(name), nullable);
        }
        return schema;
    }

    static RecordColumn[] vectors(StructType schema, String stream, Rows rows) {
        StructField[] fields = schema.fields();
        RecordColumn[] columns = new RecordColumn[fields.length];
        for (int i = 0; i < fields.length; i++) {
            columns[i] = switch (fields[i].name()) {
                case Columns.OFFSET -> new Offsets(rows);
                case Columns.TIMESTAMP -> new Timestamps(rows);
                case Columns.SUBJECT -> new SubjectNames(rows);
                case Columns.KEY -> new BinaryItems(rows, true);
                case Columns.VALUE -> new BinaryItems(rows, false);
                case Columns.HEADERS -> new HeaderLists(rows);
                case Columns.STREAM -> new Constant(rows, stream);
                default -> throw Failure.invalid("there is no column '" + fields[i].name() + "'");
            };
        }
        return columns;
    }

    static DataType type(String name) {
        return switch (name) {
            case Columns.OFFSET -> DataTypes.LongType;
            case Columns.TIMESTAMP -> DataTypes.TimestampType;
            case Columns.SUBJECT, Columns.STREAM -> DataTypes.StringType;
            case Columns.HEADERS -> DataTypes.createArrayType(HEADER);
            default -> DataTypes.BinaryType;
        };
    }

    private static final class Offsets extends RecordColumn {
        Offsets(Rows rows) {
            super(DataTypes.LongType, rows);
        }

        @Override
        public long getLong(int row) {
            return batch.offset(rows.record(row));
        }
    }

    private static final class Timestamps extends RecordColumn {
        Timestamps(Rows rows) {
            super(DataTypes.TimestampType, rows);
        }

        @Override
        public long getLong(int row) {
            return batch.timestampUs(rows.record(row));
        }
    }

    private static final class Constant extends RecordColumn {
        private final UTF8String value;

        Constant(Rows rows, String value) {
            super(DataTypes.StringType, rows);
            this.value = UTF8String.fromString(value);
        }

        @Override
        public UTF8String getUTF8String(int row) {
            return value;
        }
    }

    /**
     * The column of subjects. It makes one object for each entry of the subject dictionary that a
     * row has.
     */
    private static final class SubjectNames extends RecordColumn {
        private UTF8String[] names = new UTF8String[1];

        SubjectNames(Rows rows) {
            super(DataTypes.StringType, rows);
        }

        @Override
        void show(RecordBatch shown) {
            super.show(shown);
            shown.check(shown.subjects);
            shown.checkSubjectIds();
            int count = shown.subjectCount();
            if (names.length < count) {
                names = new UTF8String[count];
            } else {
                Arrays.fill(names, 0, count, null);
            }
        }

        @Override
        public UTF8String getUTF8String(int row) {
            int entry = batch.subjectId(rows.record(row));
            UTF8String name = names[entry];
            return name == null ? decoded(entry) : name;
        }

        /**
         * Decodes an entry only when it is needed, because a batch can have many subjects of which
         * few are wanted.
         */
        private UTF8String decoded(int entry) {
            UTF8String name = UTF8String.fromBytes(batch.bytes(),
                    batch.start(batch.subjects, entry), batch.size(batch.subjects, entry));
            if (!name.isValid()) {
                throw new Failure(Failure.CORRUPT_BATCH, "a subject in the dictionary is not UTF-8");
            }
            names[entry] = name;
            return name;
        }
    }

    /** Keys or values. */
    private static final class BinaryItems extends RecordColumn {
        private final boolean areKeys;
        private RecordBatch.Binary column;

        BinaryItems(Rows rows, boolean areKeys) {
            super(DataTypes.BinaryType, rows);
            this.areKeys = areKeys;
        }

        @Override
        void show(RecordBatch shown) {
            super.show(shown);
            column = areKeys ? shown.keys : shown.values;
            if (column.isPresent()) {
                rows.check(shown, column);
            }
        }

        @Override
        public boolean hasNull() {
            return !column.isPresent() || column.isNullable();
        }

        @Override
        public int numNulls() {
            int count = 0;
            for (int row = 0; row < rows.count(); row++) {
                count += isNullAt(row) ? 1 : 0;
            }
            return count;
        }

        @Override
        public boolean isNullAt(int row) {
            return !column.isPresent() || batch.isNull(column, rows.record(row));
        }

        @Override
        public byte[] getBinary(int row) {
            int record = rows.record(row);
            if (!column.isPresent() || batch.isNull(column, record)) {
                return null;
            }
            int start = batch.start(column, record);
            return Arrays.copyOfRange(batch.bytes(), start, start + batch.size(column, record));
        }
    }
}
