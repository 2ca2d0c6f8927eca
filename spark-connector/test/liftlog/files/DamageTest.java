package liftlog.files;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Arrays;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Set;
import java.util.stream.Stream;
import liftlog.Golden;
import liftlog.MemoryFiles;
import liftlog.files.Streams.Read;
import liftlog.files.Streams.Row;
import liftlog.records.CorruptRange;
import liftlog.records.Failure;
import liftlog.scan.Columns;
import liftlog.scan.Losses;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;

/**
 * Reads the damaged streams of tests/golden/records/damage.json. The errors are the same as in
 * Python.
 */
class DamageTest {
    /** Errors whose text differs from Python, because checkpoint files are read by other code. */
    private static final Set<String> OTHER_WORDS = Set.of("CORRUPT_METADATA", "NEWER_FORMAT");

    private static MemoryFiles damaged(JsonNode one) {
        MemoryFiles files = Golden.stream(one.get("stream").asText());
        for (JsonNode change : one.get("changes")) {
            String path = Golden.DIRECTORY + "/" + change.get("file").asText();
            byte[] raw = files.get(path);
            if (change.has("remove")) {
                files.remove(path);
            } else if (change.has("size")) {
                files.put(path, Arrays.copyOf(raw, change.get("size").asInt()));
            } else {
                byte[] bytes = HexFormat.of().parseHex(change.get("hex").asText());
                int at = change.get("position").asInt();
                byte[] made = Arrays.copyOf(raw, Math.max(raw.length, at + bytes.length));
                System.arraycopy(bytes, 0, made, at, bytes.length);
                files.put(path, made);
            }
        }
        return files;
    }

    private static void check(JsonNode expected, Failure error) {
        String name = expected.get("name").asText();
        assertEquals(name, error.name());
        if (!OTHER_WORDS.contains(name) || expected.get("reason").asText().contains(".erased")) {
            assertEquals(expected.get("reason").asText(),
                    error.reason().replace(Golden.DIRECTORY, "DIRECTORY"));
            assertEquals(expected.get("hint").asText(), error.hint());
        }
    }

    @TestFactory
    Stream<DynamicTest> reported() {
        return Golden.cases("damage", one -> {
            MemoryFiles files = damaged(one);
            if (one.get("error").isNull()) {
                new Read(files).losses(new Losses("orders", true)).rows();
                return;
            }
            Failure error = assertThrows(Failure.class,
                    () -> new Read(files).losses(new Losses("orders", true)).rows());
            if (!one.get("lost").isNull()) { // otherwise another loss may come first
                check(one.get("error"), error);
            }
        });
    }

    @TestFactory
    Stream<DynamicTest> skipped() {
        return Golden.cases("damage", one -> {
            MemoryFiles files = damaged(one);
            JsonNode lost = one.get("lost");
            if (lost.isNull()) { // it cannot be skipped
                check(one.get("error"), assertThrows(Failure.class, () -> new Read(files).rows()));
                return;
            }
            Losses losses = new Losses("orders", false);
            List<Row> found = new Read(files).losses(losses).rows();
            assertEquals(Streams.some(Streams.left(one.get("stream").asText()), Streams.ALL,
                    row -> !Streams.isIn(row.offset(), lost)), found);
            assertEquals(Streams.count(lost), losses.skipped());
            for (JsonNode range : lost) {
                long first = range.get(0).asLong();
                long next = range.get(1).asLong();
                CorruptRange error = assertThrows(CorruptRange.class, () -> new Read(files)
                        .pieces(first, next).losses(new Losses("orders", true)).rows());
                assertEquals(List.of(first, next), List.of(error.first(), error.next()));
            }
        });
    }

    /**
     * A read of few records or columns reads fewer bytes, so it does not find all damage. It shows
     * no wrong value, and no good batch is missing.
     */
    @TestFactory
    Stream<DynamicTest> readsOfFewRecordsOrColumns() {
        return Golden.cases("damage", one -> {
            JsonNode lost = one.get("lost");
            if (lost.isNull()) {
                return;
            }
            MemoryFiles files = damaged(one);
            List<Row> left = Streams.left(one.get("stream").asText());
            for (String subject : new String[] {null, "orders.rare", "orders.eu", "orders.new"}) {
                for (Set<String> columns : List.of(Streams.ALL, Set.of(Columns.OFFSET),
                        Set.of(Columns.KEY, Columns.SUBJECT), Set.of(Columns.VALUE))) {
                    Read read = new Read(files).columns(columns);
                    List<Row> found = (subject == null ? read : read.ofSubject(subject)).rows();
                    List<Row> written = Streams.some(left, columns,
                            row -> subject == null || row.subject().equals(subject));
                    assertTrue(written.containsAll(found));
                    Set<Row> shown = new HashSet<>(found);
                    assertEquals(found.size(), shown.size());
                    assertTrue(shown.containsAll(written.stream()
                            .filter(row -> !Streams.isIn(row.offset(), lost)).toList()));
                }
            }
        });
    }
}
