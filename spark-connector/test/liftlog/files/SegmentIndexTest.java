package liftlog.files;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import liftlog.Golden;
import liftlog.MemoryFiles;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class SegmentIndexTest {
    private static String path(String file) {
        return Golden.DIRECTORY + "/" + file;
    }

    @ParameterizedTest
    @ValueSource(strings = {"data", "sketched"})
    void entriesAndWhatIsFoundByThem(String name) throws IOException {
        MemoryFiles files = Golden.stream(name);
        Manifest manifest = Manifest.read(files, Golden.DIRECTORY);
        JsonNode indexes = Streams.described(name).get("indexes");
        for (Manifest.Segment one : manifest.committed()) {
            JsonNode expected = indexes.get(one.file());
            SegmentIndex index =
                    SegmentIndex.read(files, path(one.file()), one, manifest.incarnation());
            List<SegmentIndex.Entry> entries = entries(index);
            List<SegmentIndex.Entry> listed = new ArrayList<>();
            expected.get("entries").forEach(entry -> listed.add(entry(entry, 0)));
            assertEquals(listed, entries);
            try (FileStore.Opened file = files.open(SegmentIndex.indexPath(path(one.file())))) {
                assertEquals(listed.size(),
                        SegmentIndex.count(file, one, manifest.incarnation()));
            }
            checkFloors(index, expected.get("floors"), one);
            for (JsonNode time : expected.get("floors of times")) {
                assertEquals(entry(time, 1), index.floorTime(time.get(0).asLong()));
            }
            for (SegmentIndex.Entry entry : entries) {
                assertEquals(entry, index.from(entry.offset()));
                assertEquals(entry, index.after(entry.position() - 1));
            }
            assertNull(index.from(listed.get(listed.size() - 1).offset() + 1));
            assertNull(index.after(listed.get(listed.size() - 1).position()));
        }
    }

    /** Each entry is found from its offset up to the offset of the next entry. */
    private static void checkFloors(
            SegmentIndex index, JsonNode floors, Manifest.Segment segment) {
        for (int i = 0; i < floors.size(); i++) {
            long stop = i + 1 < floors.size() ? floors.get(i + 1).get(0).asLong()
                    : segment.nextOffset() + 1;
            for (long offset = floors.get(i).get(0).asLong(); offset < stop; offset++) {
                assertEquals(entry(floors.get(i), 1), index.floor(offset));
            }
        }
    }

    /** An index of version 1, which names no segment; of another segment; and of another log. */
    @Test
    void whatNamesAnotherSegmentCountsAsMissing() throws IOException {
        MemoryFiles files = Golden.stream("data");
        Manifest manifest = Manifest.read(files, Golden.DIRECTORY);
        Manifest.Segment first = manifest.segments().get(0);
        String place = SegmentIndex.indexPath(path(first.file()));
        String other = SegmentIndex.indexPath(path(manifest.segments().get(1).file()));
        assertTrue(count(files, first, manifest.incarnation()) > 0);
        assertEquals(0, count(files, first, "f" + manifest.incarnation().substring(1)));
        assertEquals(0, count(files, with(first, first.generation() + 1, first.sizeBytes()),
                manifest.incarnation()));
        byte[] unnamed = Golden.stream("unnamed").get(place);
        byte[] good = files.get(place);
        for (byte[] wrong : List.of(unnamed, files.get(other), new byte[0])) {
            files.put(place, wrong);
            assertEquals(0, count(files, first, manifest.incarnation()));
        }
        files.put(place, good);
        assertEquals(2, count(files, first, manifest.incarnation()));
    }

    /**
     * The segment was truncated later, so only entries before its end count. If it has grown, no
     * entry counts.
     */
    @Test
    void theSegmentHasAnotherSize() throws IOException {
        MemoryFiles files = Golden.stream("data");
        Manifest manifest = Manifest.read(files, Golden.DIRECTORY);
        Manifest.Segment first = manifest.segments().get(0);
        for (long[] one : new long[][] {{4145, 2}, {4144, 1}, {7336, 2}, {7337, 0}, {1 << 20, 0}}) {
            Manifest.Segment changed = with(first, first.generation(), one[0]);
            SegmentIndex index = SegmentIndex.read(
                    files, path(first.file()), changed, manifest.incarnation());
            assertEquals(one[1], entries(index).size(), () -> "of " + one[0] + " bytes");
        }
    }

    @Test
    void everyByteIsCovered() throws IOException {
        MemoryFiles files = Golden.stream("sketched");
        Manifest manifest = Manifest.read(files, Golden.DIRECTORY);
        Manifest.Segment segment = manifest.committed().get(1);
        String place = SegmentIndex.indexPath(path(segment.file()));
        byte[] good = files.get(place);
        for (int at = 0; at < good.length; at++) {
            byte[] bad = good.clone();
            bad[at] ^= 1;
            files.put(place, bad);
            SegmentIndex index = SegmentIndex.read(
                    files, path(segment.file()), segment, manifest.incarnation());
            assertEquals(List.of(), entries(index), "byte " + at);
            assertEquals(new SegmentIndex.Entry(61, 0), index.floor(300));
        }
    }

    private static long count(FileStore files, Manifest.Segment segment, String incarnation)
            throws IOException {
        SegmentIndex index = SegmentIndex.read(files, path(segment.file()), segment, incarnation);
        try (FileStore.Opened file = files.open(SegmentIndex.indexPath(path(segment.file())))) {
            assertEquals(entries(index).size(), SegmentIndex.count(file, segment, incarnation));
        }
        return entries(index).size();
    }

    private static Manifest.Segment with(Manifest.Segment one, long generation, long size) {
        return new Manifest.Segment(one.file(), one.baseOffset(), generation, one.nextOffset(),
                size, one.maxTimestampNs());
    }

    private static List<SegmentIndex.Entry> entries(SegmentIndex index) {
        List<SegmentIndex.Entry> found = new ArrayList<>();
        SegmentIndex.Entry one = index.after(-1);
        while (one != null) {
            found.add(one);
            one = index.after(one.position());
        }
        return found;
    }

    private static SegmentIndex.Entry entry(JsonNode pair, int from) {
        return new SegmentIndex.Entry(pair.get(from).asLong(), pair.get(from + 1).asLong());
    }
}
