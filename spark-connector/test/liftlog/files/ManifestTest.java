package liftlog.files;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotSame;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import liftlog.Golden;
import liftlog.MemoryFiles;
import liftlog.records.Bytes;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class ManifestTest {
    /** The older manifests have the same content, as far as their versions wrote it. */
    @ParameterizedTest
    @CsvSource({"data,data", "older,data", "single,data", "unnamed,data", "sketched,sketched",
        "erased,erased", "far,far"})
    void content(String stream, String described) {
        Manifest found = Manifest.read(Golden.stream(stream), Golden.DIRECTORY);
        JsonNode expected = Streams.described(described).get("manifest");
        assertEquals(expected.get("lineage").asText(), found.lineage());
        assertEquals(expected.get("incarnation").asText(), found.incarnation());
        assertEquals(expected.get("leader_epoch").asLong(), found.leaderEpoch());
        assertEquals(expected.get("log_start_offset").asLong(), found.logStartOffset());
        assertEquals(expected.get("high_watermark").asLong(), found.highWatermark());
        assertEquals(expected.get("cleaned_below").asLong(), found.cleanedBelow());
        assertEquals(expected.get("replicated").asBoolean(), found.isReplicated());
        assertFalse(found.isCompacted());
        List<Manifest.Segment> segments = new ArrayList<>();
        for (JsonNode one : expected.get("segments")) {
            segments.add(new Manifest.Segment(one.get(0).asText(), one.get(1).asLong(),
                    one.get(2).asLong(), one.get(3).asLong(), one.get(4).asLong(),
                    one.get(5).asLong()));
        }
        assertEquals(segments, found.segments());
        List<Manifest.Quarantined> quarantined = new ArrayList<>();
        for (JsonNode one : expected.get("quarantined")) {
            quarantined.add(new Manifest.Quarantined(one.get(0).asLong(), one.get(1).asLong(),
                    one.get(2).asText(), one.get(3).asLong(), one.get(4).asLong(),
                    one.get(5).asBoolean()));
        }
        assertEquals(quarantined, found.quarantined());
        List<Manifest.Erased> erased = new ArrayList<>();
        for (JsonNode one : expected.get("erased")) {
            String[] name = one.get(0).asText().split("\\.");
            erased.add(new Manifest.Erased(one.get(1).asLong(), one.get(2).asLong(),
                    Long.parseLong(name[1]), one.get(3).asLong(), one.get(4).asLong(),
                    (int) one.get(5).asLong()));
            assertEquals(one.get(0).asText(), erased.get(erased.size() - 1).file());
        }
        assertEquals(erased, found.erased());
        List<List<Long>> epochs = new ArrayList<>();
        expected.get("epochs").forEach(
                one -> epochs.add(List.of(one.get(0).asLong(), one.get(1).asLong())));
        assertEquals(epochs, found.epochs().entries().stream()
                .map(one -> List.of(one[0], one[1])).toList());
        List<String> committed = new ArrayList<>();
        expected.get("committed").forEach(one -> committed.add(one.asText()));
        assertEquals(committed, found.committed().stream().map(Manifest.Segment::file).toList());
        for (Manifest.Segment one : segments) {
            assertEquals(quarantined.stream().anyMatch(bad -> bad.segment().equals(one.file())),
                    found.isDamaged(one));
        }
    }

    @Test
    void filesWithRecordsOfARange() {
        Manifest found = Manifest.read(Golden.stream("sketched"), Golden.DIRECTORY);
        List<String> both = found.committed().stream().map(Manifest.Segment::file).toList();
        assertEquals(2, both.size());
        assertEquals(both, found.files(0, Long.MAX_VALUE));
        assertEquals(both, found.files(60, 62));
        assertEquals(both.subList(0, 1), found.files(60, 61));
        assertEquals(both.subList(1, 2), found.files(61, 62));
        assertEquals(List.of(), found.files(345, 400));
    }

    /** The files beside a segment identify the segment by this checksum. */
    @Test
    void theNameOfASegmentInItsSketch() {
        MemoryFiles files = Golden.stream("sketched");
        Manifest found = Manifest.read(files, Golden.DIRECTORY);
        for (Manifest.Segment one : found.committed()) {
            String stem = Golden.DIRECTORY + "/" + one.file().replace(".log", "");
            int check = found.historyCheck(one);
            assertEquals(Bytes.i32(files.get(stem + ".sketch"), 12), check);
            assertEquals(Bytes.i32(files.get(stem + ".subjects"), 12), check);
        }
    }

    @Test
    void whatHasNotChangedIsNotReadApartAgain() {
        MemoryFiles files = Golden.stream("data");
        Manifest.Last last = new Manifest.Last();
        Manifest first = Manifest.read(files, Golden.DIRECTORY, last);
        assertSame(first, Manifest.read(files, Golden.DIRECTORY, last));
        String path = Golden.DIRECTORY + "/manifest";
        files.put(path, Golden.stream("sketched").get(path));
        Manifest second = Manifest.read(files, Golden.DIRECTORY, last);
        assertNotSame(first, second);
        assertEquals(3, second.leaderEpoch());
    }

    @Test
    void aReplicatedStreamHasCommittedWhatIsBelowItsHighWatermark() {
        for (long watermark : new long[] {344, 345}) {
            MemoryFiles files = Golden.stream("sketched");
            String path = Golden.DIRECTORY + "/manifest";
            String text = new String(files.get(path), StandardCharsets.UTF_8)
                    .replaceAll("\"high_watermark\":\\d+", "\"high_watermark\":" + watermark)
                    .replace("\"reserved_offset\"", "\"replicated\":true,\"reserved_offset\"");
            String body = text.substring(text.indexOf('\n') + 1);
            byte[] raw = body.getBytes(StandardCharsets.UTF_8);
            files.put(path, String.format("liftlog manifest 1 crc32c=%08x%n%s",
                    Bytes.crc32c(raw, 0, raw.length), body)
                    .getBytes(StandardCharsets.UTF_8));
            Manifest found = Manifest.read(files, Golden.DIRECTORY);
            assertTrue(found.isReplicated());
            assertEquals(watermark == 345 ? 2 : 1, found.committed().size());
        }
    }
}
