package liftlog.files;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import liftlog.Golden;
import liftlog.MemoryFiles;
import liftlog.scan.Extent;
import liftlog.scan.Items;
import liftlog.scan.Narrowing;
import org.junit.jupiter.api.Test;

class SketchTest {
    private static final long MINUTE_4_US = 1_700_000_000_000_000L + 4 * 60_000_000L;
    private static final long NO_CHECKS = 0xFFFF_FFFFL;

    private final MemoryFiles files = Golden.stream("sketched");
    private final Manifest manifest = Manifest.read(files, Golden.DIRECTORY);
    private final JsonNode described = Streams.described("sketched").get("sketches");

    @Test
    void blocksThatCanHoldWantedRecords() {
        int excluded = 0;
        for (Manifest.Segment one : manifest.committed()) {
            JsonNode expected = described.get(one.file());
            Sketch sketch = Sketch.read(files, Golden.DIRECTORY, one, manifest);
            assertNotNull(sketch);
            List<Extent> blocks = new ArrayList<>();
            expected.get("blocks").forEach(block -> blocks.add(new Extent(
                    block.get(0).asLong(), block.get(1).asLong(), block.get(2).asLong())));
            assertEquals(blocks, sketch.extents(Narrowing.NONE, false));
            for (Map.Entry<String, JsonNode> subject : expected.get("subjects").properties()) {
                Narrowing wanted = Narrowing.NONE.ofSubjects(Items.of(subject.getKey()));
                excluded += check(blocks, subject.getValue(), sketch.extents(wanted, false));
            }
            for (JsonNode key : expected.get("keys")) {
                byte[] bytes = HexFormat.of().parseHex(key.get(0).asText());
                Narrowing wanted = Narrowing.NONE.ofKeys(Items.of(List.of(bytes)));
                excluded += check(blocks, key.get(1), sketch.extents(wanted, false));
            }
            excluded += check(blocks, expected.get("from the minute 4"),
                    sketch.extents(Narrowing.NONE.notBefore(MINUTE_4_US), false));
            excluded += check(blocks, expected.get("before the minute 4"),
                    sketch.extents(Narrowing.NONE.notAfter(MINUTE_4_US - 1), false));
        }
        assertTrue(excluded > 5);
    }

    private static int check(List<Extent> blocks, JsonNode mayMatch, List<Extent> found) {
        List<Extent> expected = new ArrayList<>();
        int excluded = 0;
        for (int i = 0; i < blocks.size(); i++) {
            Extent one = blocks.get(i);
            boolean may = mayMatch.get(i).asBoolean();
            excluded += may ? 0 : 1;
            expected.add(may ? one : new Extent(one.first(), one.next(), 0));
        }
        assertEquals(expected, found);
        return excluded;
    }

    @Test
    void checksumsOfHeadsAndValues() {
        for (Manifest.Segment one : manifest.committed()) {
            JsonNode expected = described.get(one.file()).get("parts");
            JsonNode checks = described.get(one.file()).get("value checks");
            BatchParts parts = Sketch.parts(files, Golden.DIRECTORY, one, manifest, true);
            BatchParts heads = Sketch.parts(files, Golden.DIRECTORY, one, manifest, false);
            assertEquals(expected.size(), parts.count());
            for (int i = 0; i < parts.count(); i++) {
                JsonNode part = expected.get(i);
                long first = part.get(3).asLong();
                assertEquals(i, parts.at(part.get(0).asLong()));
                assertEquals(-1, parts.at(part.get(0).asLong() + 8));
                assertEquals(part.get(0).asLong(), parts.position(i));
                assertEquals(part.get(1).asLong(), parts.headBytes(i));
                assertEquals((int) part.get(2).asLong(), parts.headCheck(i));
                assertFalse(heads.hasChecks(i, 1));
                int left = first == NO_CHECKS ? 0 : (int) (checks.size() - first);
                assertEquals(left > 0, parts.hasChecks(i, left));
                assertFalse(parts.hasChecks(i, left + 1));
                for (int value = 0; value < left; value++) {
                    assertEquals((int) checks.get((int) first + value).asLong(),
                            parts.check(i, value));
                }
            }
            for (int i = parts.count() - 1; i >= 0; i--) { // backwards, too
                assertEquals(i, parts.at(expected.get(i).get(0).asLong()));
            }
        }
    }

    /**
     * If a batch has a head, only the head and a few values count, because they are read together.
     */
    @Test
    void sizesOfWhatIsReadInParts() {
        Manifest.Segment segment = manifest.committed().get(1);
        JsonNode parts = described.get(segment.file()).get("parts");
        Sketch sketch = Sketch.read(files, Golden.DIRECTORY, segment, manifest);
        List<Extent> blocks = sketch.extents(Narrowing.NONE, false);
        List<Extent> found = sketch.extents(Narrowing.NONE, true);
        int part = 0;
        long position = 0;
        for (int i = 0; i < blocks.size(); i++) {
            long size = 0;
            position += blocks.get(i).sizeBytes();
            for (; part < parts.size() && parts.get(part).get(0).asLong() < position; part++) {
                long end = part + 1 < parts.size() ? parts.get(part + 1).get(0).asLong()
                        : segment.sizeBytes();
                long whole = end - parts.get(part).get(0).asLong();
                long head = parts.get(part).get(1).asLong();
                size += head == 0 ? whole : Math.min(whole, head + 512);
            }
            assertEquals(size, found.get(i).sizeBytes());
        }
        assertEquals(parts.size(), part);
    }

    /**
     * A read of parts does not read the filters, and a read of blocks does not read the checksums
     * of values.
     */
    @Test
    void everyByteIsCovered() {
        Manifest.Segment segment = manifest.committed().get(1);
        String place = Golden.DIRECTORY + "/" + segment.file().replace(".log", ".sketch");
        byte[] good = files.get(place);
        int batches = described.get(segment.file()).get("parts").size();
        int values = described.get(segment.file()).get("value checks").size();
        int filters = 48 + 2 * 32 + batches * 16;
        int checks = good.length - 4 * values;
        for (int at = 0; at < good.length; at++) {
            byte[] bad = good.clone();
            bad[at] ^= 1;
            files.put(place, bad);
            boolean isFilter = filters <= at && at < checks || 32 <= at && at < 36;
            boolean isCheck = checks <= at || 40 <= at && at < 44;
            String which = "byte " + at;
            boolean isHead = at < 48; // which has its own checksum, with the entries
            assertEquals(isCheck && !isHead,
                    Sketch.read(files, Golden.DIRECTORY, segment, manifest) != null, which);
            BatchParts heads = Sketch.parts(files, Golden.DIRECTORY, segment, manifest, false);
            assertEquals((isFilter || isCheck) && !isHead, heads != null, which);
            BatchParts all = Sketch.parts(files, Golden.DIRECTORY, segment, manifest, true);
            assertEquals((isFilter || isCheck) && !isHead, all != null, which);
            if (all != null) {
                assertEquals(isFilter, all.hasChecks(0, 40), which);
            }
        }
        for (int length = 0; length < good.length; length++) {
            files.put(place, Arrays.copyOf(good, length));
            BatchParts all = Sketch.parts(files, Golden.DIRECTORY, segment, manifest, true);
            assertEquals(length >= filters, all != null);
            assertFalse(all != null && all.hasChecks(0, 40));
        }
    }

    @Test
    void ofAnotherSegmentOrAnotherStateOfIt() {
        Manifest.Segment first = manifest.committed().get(0);
        Manifest.Segment second = manifest.committed().get(1);
        String place = Golden.DIRECTORY + "/" + second.file().replace(".log", ".sketch");
        for (long[] one : new long[][] {{345, 85_968, 0}, {344, 85_976, 0}, {345, 85_976, 1}}) {
            Manifest.Segment other = new Manifest.Segment(
                    second.file(), 61, one[2], one[0], one[1], second.maxTimestampNs());
            assertNull(Sketch.read(files, Golden.DIRECTORY, other, manifest));
        }
        files.put(place, files.get(place.replace("61.sketch", "01.1.sketch")));
        assertNull(Sketch.read(files, Golden.DIRECTORY, second, manifest));
        files.remove(place);
        assertNull(Sketch.read(files, Golden.DIRECTORY, second, manifest));
        assertNotNull(Sketch.read(files, Golden.DIRECTORY, first, manifest));
    }
}
