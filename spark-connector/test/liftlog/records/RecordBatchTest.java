package liftlog.records;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.function.Function;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import liftlog.Golden;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;

/** The batches of tests/golden/records/batches.json, compressed.json and damaged-batches.json. */
class RecordBatchTest {
    @TestFactory
    Stream<DynamicTest> headers() {
        return Golden.cases("batches", one -> {
            byte[] raw = Golden.bytes(one.get("batch"));
            JsonNode given = one.get("arguments");
            BatchHeader header = BatchHeader.parse(raw, 0, raw.length);
            int count = given.get("values").size();
            assertEquals(raw.length, header.length());
            assertEquals(42, header.baseOffset());
            assertEquals(given.path("last_offset").asLong(41 + count) + 1, header.nextOffset());
            assertEquals(count, header.recordCount());
            assertEquals(given.get("leader_epoch").asLong(), header.leaderEpoch());
            assertEquals(0, header.codec());
            assertEquals(given.has("keys"), header.has(BatchHeader.KEYS));
            assertEquals(given.has("headers"), header.has(BatchHeader.HEADERS));
            assertEquals(given.has("offsets"), header.has(BatchHeader.OFFSET_DELTAS));
            assertEquals(given.has("has_tombstones"), header.has(BatchHeader.TOMBSTONES));
            List<Long> stamps = stamps(given);
            if (count > 0) {
                assertEquals(stamps.get(0), header.baseTimestampNs());
                assertEquals(stamps.get(count - 1), header.maxTimestampNs());
            }
        });
    }

    @TestFactory
    Stream<DynamicTest> columns() {
        return Golden.cases("batches", one -> {
            Shown found = Shown.of(Golden.bytes(one.get("batch")));
            JsonNode given = one.get("arguments");
            int count = given.get("values").size();
            List<Long> offsets = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                offsets.add(given.has("offsets") ? given.get("offsets").get(i).asLong() : 42L + i);
            }
            assertEquals(offsets, found.offsets);
            assertEquals(stamps(given), found.timestampsNs);
            assertEquals(items(given.get("values")), found.values);
            assertEquals(given.has("keys") ? items(given.get("keys"))
                    : Arrays.asList(new String[count]), found.keys);
            if (given.has("headers")) {
                assertEquals(items(given.get("headers")), found.headers);
            }
            // In a subject that is not UTF-8, a byte is stored as \xff, and a backslash as \x5c.
            Function<String, String> stored = hex -> hex.equals("78ff5c") ? "785c7866665c783563"
                    : hex.equals("ff") ? "5c786666" : hex;
            assertEquals(items(given.get("subjects")).stream().map(stored).toList(),
                    found.subjects);
        });
    }

    @TestFactory
    Stream<DynamicTest> everyByteIsCovered() {
        return Golden.cases("batches", one -> {
            byte[] raw = Golden.bytes(one.get("batch"));
            for (int at = 0; at < raw.length; at++) {
                byte[] bad = raw.clone();
                bad[at] ^= 0x10;
                int place = at;
                Exception error = assertThrows(
                        Exception.class, () -> Shown.of(bad), () -> "byte " + place);
                assertTrue(error instanceof CorruptBatch, error::toString);
            }
        });
    }

    @TestFactory
    Stream<DynamicTest> everyPartOfABatchIsCut() {
        return Golden.cases("batches", one -> {
            byte[] raw = Golden.bytes(one.get("batch"));
            for (int length = 0; length < raw.length; length++) {
                byte[] cut = Arrays.copyOf(raw, length);
                assertThrows(CorruptBatch.class, () -> Shown.of(cut));
            }
        });
    }

    /** A batch is read in the same way before and after other batches. */
    @TestFactory
    Stream<DynamicTest> aBatchAmongOthers() {
        return Golden.cases("batches", one -> {
            byte[] raw = Golden.bytes(one.get("batch"));
            byte[] among = new byte[24 + 2 * raw.length];
            System.arraycopy(raw, 0, among, 24, raw.length);
            System.arraycopy(raw, 0, among, 24 + raw.length, raw.length);
            BatchHeader header = BatchHeader.parse(among, 24, among.length);
            header.checkBody(among, 24, among.length);
            try (RecordBatch batch = new RecordBatch()) {
                batch.load(among, 24, header);
                assertEquals(Shown.of(raw).columns(), Shown.of(batch).columns());
            }
        });
    }

    @TestFactory
    Stream<DynamicTest> trimmedToEveryRange() {
        return Golden.cases("batches", one -> {
            byte[] raw = Golden.bytes(one.get("batch"));
            List<Long> all = Shown.of(raw).offsets;
            BatchHeader header = BatchHeader.parse(raw, 0, raw.length);
            for (long from = 41; from <= header.nextOffset() + 1; from++) {
                for (long to = from; to <= header.nextOffset() + 1; to++) {
                    try (RecordBatch batch = new RecordBatch()) {
                        batch.load(raw, 0, header);
                        batch.trim(from, to);
                        long first = from;
                        long end = to;
                        assertEquals(all.stream().filter(o -> first <= o && o < end).toList(),
                                Shown.of(batch).offsets);
                    }
                }
            }
        });
    }

    @TestFactory
    Stream<DynamicTest> subjectsByName() {
        return Golden.cases("batches", one -> {
            byte[] raw = Golden.bytes(one.get("batch"));
            BatchHeader header = BatchHeader.parse(raw, 0, raw.length);
            Shown all = Shown.of(raw);
            try (RecordBatch batch = new RecordBatch()) {
                batch.load(raw, 0, header);
                assertEquals(-1, batch.subjectEntry(new byte[] {'n', 'o'}));
                for (String name : all.subjects) {
                    int entry = batch.subjectEntry(HexFormat.of().parseHex(name));
                    int[] into = new int[header.recordCount()];
                    int count = batch.recordsWithSubject(entry, 0, header.recordCount(), into);
                    int[] expected = IntStream.range(0, header.recordCount())
                            .filter(i -> all.subjects.get(i).equals(name)).toArray();
                    assertArrayEquals(expected, Arrays.copyOf(into, count));
                }
            }
        });
    }

    /** All columns except the values can be read without the bytes of the values. */
    @TestFactory
    Stream<DynamicTest> heads() {
        return Golden.cases("batches", one -> {
            byte[] raw = Golden.bytes(one.get("batch"));
            BatchHeader header = BatchHeader.parse(raw, 0, raw.length);
            Shown all = Shown.of(raw);
            try (RecordBatch whole = new RecordBatch(); RecordBatch batch = new RecordBatch()) {
                whole.load(raw, 0, header);
                int size = whole.values.data;
                batch.loadHead(Arrays.copyOf(raw, size), 0, header, size);
                batch.check(batch.values);
                for (int row = 0; row < header.recordCount(); row++) {
                    assertEquals(all.offsets.get(row), batch.offset(row));
                    assertEquals(all.timestampsNs.get(row), batch.timestampNs(row));
                    assertEquals(all.values.get(row) == null, batch.isNull(batch.values, row));
                    assertEquals(whole.size(whole.values, row), batch.size(batch.values, row));
                }
                byte[] longer = Arrays.copyOf(raw, raw.length + 8);
                for (int wrong : new int[] {size - 8, size + 8}) {
                    assertThrows(CorruptBatch.class,
                            () -> batch.loadHead(longer, 0, header, wrong));
                }
            }
        });
    }

    @TestFactory
    Stream<DynamicTest> compressed() {
        return Golden.cases("compressed", one -> {
            byte[] stored = Golden.bytes(one.get("batch"));
            byte[] plain = Golden.bytes(one.get("plain"));
            BatchHeader header = BatchHeader.parse(stored, 0, stored.length);
            assertEquals(one.get("codec").asText().equals("lz4") ? 1 : 2, header.codec());
            assertEquals(Shown.of(plain).columns(), Shown.of(stored).columns());
        });
    }

    /**
     * The memory for columns is reused. A smaller batch after a larger one must show nothing of it.
     */
    @Test
    void oneObjectShowsManyBatches() throws CorruptBatch {
        try (RecordBatch batch = new RecordBatch()) {
            for (String name : List.of("compressed", "batches", "compressed")) {
                for (JsonNode one : Golden.json(name)) {
                    byte[] raw = Golden.bytes(one.get("batch"));
                    batch.load(raw, 0, BatchHeader.parse(raw, 0, raw.length));
                    assertEquals(Shown.of(raw).columns(), Shown.of(batch).columns());
                }
            }
        }
    }

    @TestFactory
    Stream<DynamicTest> damaged() {
        return Golden.cases("damaged-batches", one -> {
            byte[] raw = Golden.bytes(one.get("batch"));
            String message = one.get("message").asText();
            Exception error = assertThrows(Exception.class, () -> Shown.of(raw));
            String name = error instanceof Failure failure ? failure.name() : Failure.CORRUPT_BATCH;
            assertTrue(error instanceof CorruptBatch || error instanceof Failure, error::toString);
            assertEquals(one.get("error").asText(), name);
            // If columns contradict each other, each reader may find another contradiction first.
            boolean isContradiction =
                    error instanceof Failure failure && failure.is(Failure.CORRUPT_BATCH);
            String words = error instanceof Failure failure ? failure.reason() : error.getMessage();
            assertTrue(isContradiction || words.startsWith(message), () -> words);
        });
    }

    private static List<String> items(JsonNode list) {
        List<String> found = new ArrayList<>();
        list.forEach(one -> found.add(Golden.hex(Golden.bytes(one))));
        return found;
    }

    private static List<Long> stamps(JsonNode given) {
        List<Long> found = new ArrayList<>();
        for (JsonNode one : given.get("stamps")) {
            for (int i = 0; i < one.get(1).asInt(); i++) {
                found.add(one.get(0).asLong());
            }
        }
        return found;
    }
}
