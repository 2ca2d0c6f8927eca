package liftlog.files;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import liftlog.Golden;
import liftlog.MemoryFiles;
import liftlog.files.Streams.Read;
import liftlog.files.Streams.Row;
import liftlog.records.CorruptRange;
import liftlog.records.Failure;
import liftlog.scan.Columns;
import liftlog.scan.Extent;
import liftlog.scan.Items;
import liftlog.scan.Losses;
import liftlog.scan.Narrowing;
import liftlog.scan.StreamState;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Rows of the golden streams, read in all ways. */
class ReadingTest {
    private static final String RARE = "orders.rare";
    private static final String LOG = Golden.DIRECTORY + "/00000000000000000061.log";
    private static final String SKETCH = LOG.replace(".log", ".sketch");
    private static final String SUBJECTS = LOG.replace(".log", ".subjects");

    @ParameterizedTest
    @ValueSource(strings = {"data", "older", "single", "unnamed", "sketched", "erased", "far"})
    void allRows(String stream) {
        String described = Set.of("sketched", "erased", "far").contains(stream) ? stream : "data";
        assertEquals(Streams.left(described), new Read(Golden.stream(stream)).rows());
    }

    @ParameterizedTest
    @ValueSource(strings = {"data", "sketched", "erased"})
    void everyRangeOfOffsets(String stream) {
        MemoryFiles files = Golden.stream(stream);
        List<Row> all = Streams.left(stream);
        StreamState state = new Read(files).transport().state();
        long step = stream.equals("data") ? 1 : 13;
        for (long from = state.logStart(); from < state.end(); from += step) {
            for (long to = from + 1; to <= state.end(); to += step) {
                long first = from;
                long end = to;
                assertEquals(Streams.some(all, Streams.ALL,
                                row -> first <= row.offset() && row.offset() < end),
                        new Read(files).pieces(from, to).rows());
            }
        }
    }

    @Test
    void piecesOfARange() {
        MemoryFiles files = Golden.stream("sketched");
        List<Row> all = Streams.left("sketched");
        long[] borders = {5, 6, 20, 61, 61, 62, 75, 140, 141, 142, 150, 152, 300, 340, 344, 345};
        List<Row> expected = Streams.some(all, Streams.ALL, row -> {
            boolean isIn = false;
            for (int i = 0; i < borders.length; i += 2) {
                isIn |= borders[i] <= row.offset() && row.offset() < borders[i + 1];
            }
            return isIn;
        });
        assertEquals(expected, new Read(files).pieces(borders).rows());
        // There are no records on the subject between the pieces.
        for (String without : new String[] {"", SUBJECTS, SKETCH}) {
            files.remove(without);
            Read read = new Read(files).ofSubject(RARE).pieces(5, 9, 61, 69, 100, 130, 344, 345);
            assertEquals(Streams.some(all, Streams.ALL, row -> row.subject().equals(RARE)),
                    read.rows());
        }
    }

    @ParameterizedTest
    @CsvSource({"sketched,orders.eu", "sketched,orders.us", "sketched," + RARE,
        "sketched,orders.never", "erased,orders.eu", "erased,orders.us", "erased," + RARE})
    void rowsOfASubject(String stream, String subject) {
        List<Row> all = Streams.left(stream);
        List<Set<String>> columns = List.of(Streams.ALL, Set.of(Columns.OFFSET),
                Set.of(Columns.OFFSET, Columns.TIMESTAMP), Set.of(Columns.KEY, Columns.SUBJECT),
                Set.of(Columns.VALUE), Set.of(Columns.HEADERS));
        for (List<String> without : List.of(
                List.<String>of(), List.of(SUBJECTS), List.of(SKETCH), List.of(SUBJECTS, SKETCH))) {
            MemoryFiles files = Golden.stream(stream);
            without.forEach(files::remove);
            for (Set<String> some : columns) {
                assertEquals(Streams.some(all, some, row -> row.subject().equals(subject)),
                        new Read(files).ofSubject(subject).columns(some).rows());
                assertEquals(Streams.some(all, some, row -> true),
                        new Read(files).columns(some).rows());
            }
        }
    }

    /** The files beside a segment save reads of the segment. */
    @Test
    void onlyWhatIsNeededIsRead() {
        long whole = Golden.stream("sketched").get(LOG).length;
        assertTrue(bytesRead(RARE, Streams.ALL) < whole / 20, "by the subject index");
        assertTrue(bytesRead(RARE, Streams.ALL, SUBJECTS) < whole / 2, "by parts of batches");
        assertTrue(bytesRead(RARE, Streams.ALL, SUBJECTS, SKETCH) >= whole, "by nothing");
        assertTrue(bytesRead(null, Set.of(Columns.KEY)) < whole / 4, "heads");
        assertTrue(bytesRead(null, Streams.ALL) >= whole, "all");
    }

    private static long bytesRead(String subject, Set<String> columns, String... without) {
        MemoryFiles files = Golden.stream("sketched");
        for (String one : without) {
            files.remove(one);
        }
        Read read = new Read(files).columns(columns);
        (subject == null ? read : read.ofSubject(subject)).rows();
        return files.bytesRead(LOG);
    }

    @ParameterizedTest
    @ValueSource(strings = {"data", "sketched", "erased", "far"})
    void offsetsOfTimes(String stream) {
        FileTransport transport = new Read(Golden.stream(stream)).transport();
        for (JsonNode one : Streams.described(stream).get("times")) {
            assertEquals(one.get(1).asLong(), transport.offsetAt(one.get(0).asLong()),
                    () -> "at " + one.get(0));
        }
    }

    @Test
    void extentsTileTheOffsets() {
        MemoryFiles files = Golden.stream("sketched");
        FileTransport transport = new Read(files).transport();
        StreamState state = transport.state();
        assertEquals(List.of(1L, 345L, 3L),
                List.of(state.logStart(), state.end(), state.leaderEpoch()));
        Narrowing rare = Narrowing.NONE.ofSubjects(Items.of(RARE));
        for (StreamState measured : List.of(state, transport.measure(state, 1, 345, 1),
                transport.find(state, 1, 345, 1, Narrowing.NONE, false),
                transport.find(state, 1, 345, 1, rare, true))) {
            long reached = 1;
            for (Extent one : measured.extents()) {
                assertEquals(reached, one.first());
                reached = one.next();
            }
            assertEquals(345, reached);
        }
        assertEquals(List.of(new Extent(1, 61, 0), new Extent(305, 345, 0)),
                transport.find(state, 1, 345, 1, rare, false).extents().stream()
                        .filter(one -> one.sizeBytes() == 0).toList());
        assertEquals(4104 + 85_976, transport.measure(state, 1, 345, 1).extents().stream()
                .mapToLong(Extent::sizeBytes).sum());
    }

    /** Such a page counts as zeros: its records are lost, and no others. */
    @Test
    void aPageThatTheDiskDoesNotGive() throws IOException {
        for (long page = 0; page < 21; page++) {
            MemoryFiles zeros = Golden.stream("sketched");
            byte[] bytes = zeros.get(LOG).clone();
            Arrays.fill(bytes, (int) page * 4096,
                    (int) Math.min(bytes.length, (page + 1) * 4096), (byte) 0);
            zeros.put(LOG, bytes);
            MemoryFiles broken = Golden.stream("sketched");
            broken.breakPage(LOG, page, "Input/output error");
            Losses expected = new Losses("orders", false);
            Losses found = new Losses("orders", false);
            assertEquals(new Read(zeros).losses(expected).rows(),
                    new Read(broken).losses(found).rows());
            assertTrue(expected.skipped() > 0);
            assertEquals(expected.skipped(), found.skipped());
            assertEquals(Streams.left("sketched").size() - expected.skipped(),
                    new Read(broken).rows().size());
        }
    }

    @Test
    void anotherErrorOfTheDiskIsNoDamage() {
        MemoryFiles files = Golden.stream("sketched");
        files.breakPage(LOG, 5, "Stale file handle");
        Failure error = assertThrows(Failure.class, () -> new Read(files).rows());
        assertEquals(Failure.STORAGE_ERROR, error.name());
        assertTrue(error.reason().contains("Stale file handle"));
    }

    @Test
    void aListedRangeIsReportedWithItsBorders() {
        Read read = new Read(Golden.stream("data")).losses(new Losses("orders", true));
        CorruptRange error = assertThrows(CorruptRange.class, read::rows);
        assertEquals(List.of(3L, 4L), List.of(error.first(), error.next()));
        assertEquals("CORRUPT_RANGE: the records [3, 4) are damaged or lost"
                + " (set failOnDataLoss=false to continue without them)", error.getMessage());
    }

    /** Retention may remove records while a read is planned. This is no damage. */
    @Test
    void recordsThatRetentionRemoved() {
        Losses losses = new Losses("orders", false);
        List<Row> found = new Read(Golden.stream("data")).pieces(1, 3).losses(losses).rows();
        assertEquals(List.of(2L), found.stream().map(Row::offset).toList());
        assertEquals(1, losses.skipped());
        Read read = new Read(Golden.stream("data")).pieces(1, 3).losses(new Losses("orders", true));
        Failure error = assertThrows(Failure.class, read::rows);
        assertEquals(Failure.OFFSET_OUT_OF_RANGE, error.name());
    }
}
