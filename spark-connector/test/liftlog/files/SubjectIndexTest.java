package liftlog.files;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.zip.CRC32C;
import liftlog.Golden;
import liftlog.MemoryFiles;
import liftlog.records.Bytes;
import org.junit.jupiter.api.Test;

class SubjectIndexTest {
    private static final int SUBJECTS = 3;

    private final MemoryFiles files = Golden.stream("sketched");
    private final Manifest manifest = Manifest.read(files, Golden.DIRECTORY);
    private final Manifest.Segment segment = manifest.committed().get(1);
    private final String path =
            Golden.DIRECTORY + "/" + segment.file().replace(".log", ".subjects");

    private SubjectIndex read(Manifest.Segment of) throws IOException {
        try (FileStore.Opened file = SubjectIndex.open(files, Golden.DIRECTORY, of)) {
            return SubjectIndex.read(file, of, manifest);
        }
    }

    @Test
    void runsOfEachSubject() throws IOException {
        SubjectIndex index = read(segment);
        JsonNode described = Streams.described("sketched").get("subjects").get(segment.file());
        int records = 0;
        for (Map.Entry<String, JsonNode> subject : described.properties()) {
            byte[] name = subject.getKey().getBytes(StandardCharsets.UTF_8);
            SubjectIndex.Runs runs = index.runsOf(name);
            List<List<Long>> found = new ArrayList<>();
            for (int run = runs.first(); run < runs.end(); run++) {
                assertTrue(index.isPossible(run, files.get(path).length));
                found.add(List.of(segment.baseOffset() + index.first(run),
                        segment.baseOffset() + index.last(run), (long) index.records(run)));
                records += index.records(run);
            }
            List<List<Long>> expected = new ArrayList<>();
            subject.getValue().forEach(run -> expected.add(List.of(
                    run.get(0).asLong(), run.get(1).asLong(), run.get(2).asLong())));
            assertEquals(expected, found);
        }
        assertEquals(284, records); // all records of the segment
        for (String none : List.of("", "orders", "orders.e", "orders.euX", "zebra")) {
            SubjectIndex.Runs runs = index.runsOf(none.getBytes(StandardCharsets.UTF_8));
            assertEquals(runs.first(), runs.end());
        }
    }

    /** The runs follow the entries and the names without a gap, up to the end of the file. */
    @Test
    void runsTileTheFile() throws IOException {
        SubjectIndex index = read(segment);
        long position = 48 + index.sizeBytes();
        List<Integer> runs = new ArrayList<>(List.of(0, 1, 2));
        runs.sort(Comparator.comparingLong(index::position));
        for (int run : runs) {
            assertEquals(position, index.position(run));
            assertTrue(index.isPossible(run, position + index.size(run)));
            assertFalse(index.isPossible(run, position + index.size(run) - 1));
            position += index.size(run);
        }
        assertEquals(files.get(path).length, position);
    }

    @Test
    void oneWithoutSubjectsIsNone() throws IOException {
        Manifest.Segment first = manifest.committed().get(0);
        String place = Golden.DIRECTORY + "/" + first.file().replace(".log", ".subjects");
        assertEquals(48, files.get(place).length);
        assertNull(read(first));
    }

    @Test
    void everyByteOfTheEntriesIsCovered() throws IOException {
        byte[] good = files.get(path);
        int entries = 48 + read(segment).sizeBytes();
        for (int at = 0; at < good.length; at++) {
            byte[] bad = good.clone();
            bad[at] ^= 1;
            files.put(path, bad);
            assertEquals(at >= entries, read(segment) != null, "byte " + at);
        }
        for (int length = 0; length < good.length; length++) {
            files.put(path, Arrays.copyOf(good, length));
            assertNull(read(segment));
        }
    }

    @Test
    void ofAnotherStateOfTheSegment() throws IOException {
        for (long[] one : new long[][] {{345, 85_968, 0}, {344, 85_976, 0}, {345, 85_976, 1}}) {
            Manifest.Segment other = new Manifest.Segment(
                    segment.file(), 61, one[2], one[0], one[1], segment.maxTimestampNs());
            assertNull(read(other));
        }
        assertNotNull(read(segment));
    }

    /** The checksum is right, but the entries contradict each other. */
    @Test
    void aWriterThatWasWrong() throws IOException {
        byte[] good = files.get(path);
        int runs = 48 + SUBJECTS * 16;
        for (int[] one : new int[][] {
            {48, 1 << 30}, {48 + 4, 100}, {48 + 8, 4}, {48 + 16 + 8, 4}, {48 + 32 + 8, 0}}) {
            files.put(path, with(good, one[0], one[1]));
            assertNull(read(segment), () -> "byte " + one[0]);
        }
        int[][] impossible = {
            {8, good.length}, {12, good.length}, {12, 65 << 20}, {16, 63}, {16, 1 << 30}, {20, 0},
            {20, 0x10000}, {24, 64}, {24, -1}};
        for (int[] one : impossible) {
            files.put(path, with(good, runs + one[0], one[1]));
            assertFalse(read(segment).isPossible(0, good.length), () -> "field " + one[0]);
        }
    }

    private static byte[] with(byte[] good, int at, int value) {
        byte[] made = good.clone();
        Bytes.putInt(made, at, value);
        int entries = 48 + SUBJECTS * 16 + Bytes.i32(made, 32) * 32 + Bytes.i32(made, 36);
        CRC32C check = new CRC32C();
        check.update(made, 0, 44);
        check.update(made, 48, entries - 48);
        Bytes.putInt(made, 44, (int) check.getValue());
        return made;
    }
}
