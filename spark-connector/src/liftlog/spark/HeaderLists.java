package liftlog.spark;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import liftlog.records.RecordBatch;
import liftlog.scan.Columns;
import liftlog.scan.Rows;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * The headers of records as lists of names and values, in their order. The first line of a block
 * and lines without a name are skipped. A record without a header block has an empty list.
 */
final class HeaderLists extends RecordColumn {
    private final Pairs pairs;
    private int[] ends = new int[0];
    private byte[][] names = new byte[16][];
    private byte[][] values = new byte[16][];
    private int count;

    HeaderLists(Rows rows) {
        super(RecordColumns.type(Columns.HEADERS), rows);
        pairs = new Pairs(rows);
    }

    @Override
    void show(RecordBatch shown) {
        super.show(shown);
        count = 0;
        if (ends.length < rows.count()) {
            ends = new int[rows.count()];
        }
        if (!shown.headers.isPresent()) {
            Arrays.fill(ends, 0);
            return;
        }
        rows.check(shown, shown.headers);
        for (int row = 0; row < rows.count(); row++) {
            int record = rows.record(row);
            int start = shown.start(shown.headers, record);
            parse(shown.bytes(), start, start + shown.size(shown.headers, record));
            ends[row] = count;
        }
    }

    @Override
    public ColumnarArray getArray(int row) {
        int start = row == 0 ? 0 : ends[row - 1];
        return new ColumnarArray(pairs, start, ends[row] - start);
    }

    private void parse(byte[] bytes, int start, int end) {
        int line = lineEnd(bytes, start, end) + 2;
        while (line <= end) {
            int stop = lineEnd(bytes, line, end);
            int colon = line;
            while (colon < stop && bytes[colon] != ':') {
                colon++;
            }
            if (colon < stop && colon > line) {
                add(bytes, line, colon, stop);
            }
            line = stop + 2;
        }
    }

    private void add(byte[] bytes, int line, int colon, int stop) {
        int from = colon + 1;
        int to = stop;
        while (from < to && isBlank(bytes[from])) {
            from++;
        }
        while (to > from && isBlank(bytes[to - 1])) {
            to--;
        }
        if (count == names.length) {
            names = Arrays.copyOf(names, 2 * count);
            values = Arrays.copyOf(values, 2 * count);
        }
        names[count] = Arrays.copyOfRange(bytes, line, colon);
        values[count++] = Arrays.copyOfRange(bytes, from, to);
    }

    private static int lineEnd(byte[] bytes, int start, int end) {
        for (int i = start; i + 1 < end; i++) {
            if (bytes[i] == '\r' && bytes[i + 1] == '\n') {
                return i;
            }
        }
        return end;
    }

    private static boolean isBlank(byte one) {
        return one == ' ' || one == '\t';
    }

    /** The elements of all lists. */
    private final class Pairs extends RecordColumn {
        private final ColumnVector name;
        private final ColumnVector value;

        Pairs(Rows rows) {
            super(((ArrayType) HeaderLists.this.type).elementType(), rows);
            name = new Names(rows);
            value = new Values(rows);
        }

        @Override
        public ColumnVector getChild(int ordinal) {
            return ordinal == 0 ? name : value;
        }
    }

    private final class Names extends RecordColumn {
        Names(Rows rows) {
            super(DataTypes.StringType, rows);
        }

        /** Returns a name. Invalid UTF-8 becomes U+FFFD. */
        @Override
        public UTF8String getUTF8String(int element) {
            UTF8String found = UTF8String.fromBytes(names[element]);
            return found.isValid()
                    ? found
                    : UTF8String.fromString(new String(names[element], StandardCharsets.UTF_8));
        }
    }

    private final class Values extends RecordColumn {
        Values(Rows rows) {
            super(DataTypes.BinaryType, rows);
        }

        @Override
        public byte[] getBinary(int element) {
            return values[element];
        }
    }
}
