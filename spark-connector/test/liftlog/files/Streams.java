package liftlog.files;

import com.fasterxml.jackson.databind.JsonNode;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Predicate;
import liftlog.Golden;
import liftlog.records.Bytes;
import liftlog.records.RecordBatch;
import liftlog.scan.BatchSource;
import liftlog.scan.Columns;
import liftlog.scan.Extent;
import liftlog.scan.Items;
import liftlog.scan.Losses;
import liftlog.scan.Narrowing;
import liftlog.scan.Rows;
import liftlog.scan.ScanOptions;
import liftlog.scan.ScanRange;

/** The golden streams: their content according to streams.json, and as this connector reads it. */
final class Streams {
    static final Set<String> ALL = Set.of(Columns.OFFSET, Columns.TIMESTAMP, Columns.SUBJECT,
            Columns.KEY, Columns.HEADERS, Columns.VALUE);

    /** The columns of a record that were read. For a value, its size and its CRC-32C. */
    record Row(long offset, long timestampNs, String subject, String key, String headers,
            Integer size, Integer check) {
        Row with(Set<String> columns) {
            return new Row(offset,
                    columns.contains(Columns.TIMESTAMP) ? timestampNs : 0,
                    columns.contains(Columns.SUBJECT) ? subject : null,
                    columns.contains(Columns.KEY) ? key : null,
                    columns.contains(Columns.HEADERS) ? headers : null,
                    columns.contains(Columns.VALUE) ? size : null,
                    columns.contains(Columns.VALUE) ? check : null);
        }
    }

    private Streams() {}

    static JsonNode described(String name) {
        return Golden.json("streams").get(name);
    }

    /**
     * Returns the records as they were written, including those that a manifest lists as damaged.
     */
    static List<Row> written(String name) {
        List<Row> found = new ArrayList<>();
        for (JsonNode one : described(name).get("records")) {
            found.add(new Row(one.get(0).asLong(), one.get(1).asLong(), one.get(2).asText(),
                    one.get(3).isNull() ? null : one.get(3).asText(), one.get(4).asText(),
                    one.get(5).isNull() ? null : one.get(5).asInt(),
                    one.get(6).isNull() ? null : (int) one.get(6).asLong()));
        }
        return found;
    }

    /** Returns the records that remain after retention, erasures and known damage. */
    static List<Row> left(String name) {
        JsonNode manifest = described(name).get("manifest");
        return written(name).stream()
                .filter(row -> row.offset() >= manifest.get("log_start_offset").asLong())
                .filter(row -> !isIn(row.offset(), manifest.get("quarantined")))
                .filter(row -> !isIn(row.offset(), described(name).get("erased")))
                .toList();
    }

    /**
     * Returns true if an offset is in one of these ranges. The first two items of a range are its
     * borders.
     */
    static boolean isIn(long offset, JsonNode ranges) {
        for (JsonNode one : ranges) {
            if (one.get(0).asLong() <= offset && offset < one.get(1).asLong()) {
                return true;
            }
        }
        return false;
    }

    /** Returns the number of offsets in these ranges. */
    static long count(JsonNode ranges) {
        long count = 0;
        for (JsonNode one : ranges) {
            count += one.get(1).asLong() - one.get(0).asLong();
        }
        return count;
    }

    static Manifest.Segment segment(Manifest manifest, String file) {
        return manifest.segments().stream().filter(one -> one.file().equals(file)).findAny().get();
    }

    /** A read of the files of a stream. */
    static final class Read {
        private final FileStore store;
        private Narrowing wanted = Narrowing.NONE;
        private Set<String> columns = ALL;
        private Losses losses = new Losses("orders", false);
        private List<Extent> pieces;

        Read(FileStore store) {
            this.store = store;
        }

        Read ofSubject(String name) {
            wanted = wanted.ofSubjects(Items.of(name));
            return this;
        }

        Read columns(Set<String> some) {
            columns = some;
            return this;
        }

        Read losses(Losses other) {
            losses = other;
            return this;
        }

        /** Reads only these pieces, each between two offsets. */
        Read pieces(long... borders) {
            pieces = new ArrayList<>();
            for (int i = 0; i < borders.length; i += 2) {
                pieces.add(new Extent(borders[i], borders[i + 1], 0));
            }
            return this;
        }

        FileTransport transport() {
            return new FileTransport(store, Golden.DIRECTORY, "orders", wanted);
        }

        /** Returns the rows as tasks of Spark read them. Throws Failure. */
        List<Row> rows() {
            FileTransport transport = transport();
            var state = transport.state();
            if (pieces == null) {
                pieces(state.logStart(), state.end());
            }
            ScanRange range = transport.held(List.of(new ScanRange("orders", state.identity(),
                    state.leaderEpoch(), pieces.get(0).first(),
                    pieces.get(pieces.size() - 1).next(), pieces, ScanRange.Guard.NONE))).get(0);
            Rows rows = new Rows(ScanOptions.parse(Map.of("path", Golden.DIRECTORY), false)
                    .narrowed(wanted));
            Set<String> needed = rows.columns(false);
            needed.addAll(columns);
            List<Row> found = new ArrayList<>();
            try (RecordBatch batch = new RecordBatch(); BatchSource source =
                    transport.batches(range, needed, losses, true, rows.selects())) {
                while (source.next(batch)) {
                    int count = rows.select(batch);
                    if (count > 0 && !source.complete(batch, rows)) {
                        continue;
                    }
                    for (int row = 0; row < count; row++) {
                        found.add(row(batch, rows, rows.record(row)));
                    }
                }
            }
            return found;
        }

        private Row row(RecordBatch batch, Rows rows, int record) {
            boolean hasTime = columns.contains(Columns.TIMESTAMP);
            return new Row(batch.offset(record), hasTime ? batch.timestampNs(record) : 0,
                    columns.contains(Columns.SUBJECT) ? subject(batch, record) : null,
                    hex(batch, rows, columns.contains(Columns.KEY) ? batch.keys : null, record),
                    headers(batch, rows, record),
                    value(batch, rows, record, false), value(batch, rows, record, true));
        }

        private static String subject(RecordBatch batch, int record) {
            batch.check(batch.subjects);
            batch.checkSubjectIds();
            return new String(bytes(batch, batch.subjects, batch.subjectId(record)),
                    StandardCharsets.UTF_8);
        }

        private String headers(RecordBatch batch, Rows rows, int record) {
            if (!columns.contains(Columns.HEADERS)) {
                return null;
            }
            String found = hex(batch, rows, batch.headers, record);
            return found == null ? "" : found;
        }

        private Integer value(RecordBatch batch, Rows rows, int record, boolean isCheck) {
            if (!columns.contains(Columns.VALUE)) {
                return null;
            }
            rows.check(batch, batch.values);
            byte[] bytes = bytes(batch, batch.values, record);
            if (bytes == null) {
                return null;
            }
            return isCheck ? Bytes.crc32c(bytes, 0, bytes.length) : (Integer) bytes.length;
        }

        private static String hex(
                RecordBatch batch, Rows rows, RecordBatch.Binary column, int record) {
            if (column == null || !column.isPresent()) {
                return null;
            }
            rows.check(batch, column);
            return Golden.hex(bytes(batch, column, record));
        }

        private static byte[] bytes(RecordBatch batch, RecordBatch.Binary column, int item) {
            if (batch.isNull(column, item)) {
                return null;
            }
            int at = batch.start(column, item);
            return Arrays.copyOfRange(batch.bytes(), at, at + batch.size(column, item));
        }
    }

    static List<Row> some(List<Row> rows, Set<String> columns, Predicate<Row> keep) {
        return rows.stream().filter(keep).map(row -> row.with(columns)).toList();
    }
}
