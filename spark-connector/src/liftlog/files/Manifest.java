package liftlog.files;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import liftlog.records.Bytes;
import liftlog.records.Epochs;
import liftlog.records.Failure;

/**
 * The content of a stream's directory, according to the file {@code manifest}, or to
 * {@code manifest.copy} if {@code manifest} cannot be read. Version 2 lists erased files.
 */
public record Manifest(
        String lineage,
        long leaderEpoch,
        long logStartOffset,
        long highWatermark,
        long cleanedBelow,
        boolean isReplicated,
        boolean isCompacted,
        List<Segment> segments,
        List<Quarantined> quarantined,
        List<Erased> erased,
        Epochs epochs) {

    public static final String NAME = "manifest";
    private static final String COPY = "manifest.copy";
    private static final String SKIPPED =
            "offsets skipped after an unreadable tail that was not acked";
    private static final Set<String> VERSIONS = Set.of("1", "2");
    private static final Pattern FIRST_LINE =
            Pattern.compile("liftlog manifest (\\d+) crc32c=([0-9a-f]{8})");
    private static final ObjectMapper JSON = new ObjectMapper();

    /** One listed segment file. */
    public record Segment(
            String file, long baseOffset, long generation, long nextOffset, long sizeBytes,
            long maxTimestampNs) {}

    /** A range of lost offsets, [first, next), and the place of their bytes if the bytes exist. */
    public record Quarantined(
            long first, long next, String segment, long position, long end, boolean isLoss) {}

    /**
     * One listed file with offsets of erased records. Offsets from {@code next} on do not count.
     * {@code count} is the number of offsets in the file, {@code sizeBytes} the size of each half.
     */
    public record Erased(
            long first, long next, long number, long count, long sizeBytes, int check) {
        public String file() {
            return String.format("%020d.%d.erased", first, number);
        }
    }

    /** The manifest that was read last, because a task requests the manifest for each segment. */
    static final class Last {
        private byte[] raw = {};
        private Manifest manifest;
    }

    /** Reads the manifest. Throws Failure CORRUPT_METADATA, NEWER_FORMAT or STORAGE_ERROR. */
    public static Manifest read(FileStore store, String directory) {
        return read(store, directory, new Last());
    }

    /**
     * Like {@code read(store, directory)}, but does not parse the manifest again if it is the same
     * as {@code last}.
     */
    static Manifest read(FileStore store, String directory, Last last) {
        try {
            Manifest found = read(store, directory, NAME, last);
            if (found != null) {
                return found;
            }
        } catch (Failure error) {
            boolean isDamaged =
                    error.is(Failure.CORRUPT_METADATA) || error.is(Failure.NEWER_FORMAT);
            if (!isDamaged) {
                throw error;
            }
            // A newer version of liftlog writes the copy first. So if the copy is good, the
            // manifest is damaged.
            Manifest copy = readCopy(store, directory);
            if (copy == null) {
                throw error;
            }
            return copy;
        }
        Manifest copy = readCopy(store, directory);
        if (copy == null) {
            throw new Failure(Failure.CORRUPT_METADATA, directory + " has no manifest",
                    "copy a stream's directory as a whole");
        }
        return copy;
    }

    /** The incarnation of the log. It is the same in all lineages of the log. */
    String incarnation() {
        int end = lineage.indexOf(':');
        return end < 0 ? lineage : lineage.substring(0, end);
    }

    /** Returns the checksum that identifies a segment in its sketch and in its subject index. */
    int historyCheck(Segment segment) {
        String name = segment.generation() == 0 ? lineage : lineage + "/" + segment.generation();
        byte[] bytes = name.getBytes(StandardCharsets.UTF_8);
        return Bytes.crc32c(bytes, 0, bytes.length);
    }

    /** Returns the sealed segments in which all records are certainly committed, oldest first. */
    public List<Segment> committed() {
        List<Segment> found = new ArrayList<>();
        for (Segment one : segments.subList(0, segments.size() - 1)) {
            if (!isReplicated || one.nextOffset() <= highWatermark) {
                found.add(one);
            }
        }
        return found;
    }

    /** Returns the names of the committed files that hold records of [first, end). */
    public List<String> files(long first, long end) {
        List<String> names = new ArrayList<>();
        for (Segment one : committed()) {
            if (one.nextOffset() > first && one.baseOffset() < end) {
                names.add(one.file());
            }
        }
        return names;
    }

    /** Returns the erased files with offsets of [first, end). */
    List<Erased> erased(long first, long end) {
        return erased.stream()
                .filter(one -> one.first() < end && one.next() > first)
                .toList();
    }

    /** Returns true if the manifest lists damaged bytes in this segment. */
    boolean isDamaged(Segment segment) {
        return quarantined.stream().anyMatch(one -> one.segment().equals(segment.file()));
    }

    private static Manifest readCopy(FileStore store, String directory) {
        try {
            return read(store, directory, COPY, new Last());
        } catch (Failure error) {
            return null;
        }
    }

    private static Manifest read(FileStore store, String directory, String name, Last last) {
        String path = directory + "/" + name;
        byte[] raw;
        try {
            raw = store.readAll(path);
        } catch (FileNotFoundException error) {
            return null;
        } catch (IOException error) {
            throw new Failure(Failure.CORRUPT_METADATA,
                    name + " cannot be read: " + error.getMessage(), "", error);
        }
        if (last.manifest != null && Arrays.equals(raw, last.raw)) {
            return last.manifest;
        }
        int line = 0;
        while (line < raw.length && raw[line] != '\n') {
            line++;
        }
        Matcher first =
                FIRST_LINE.matcher(new String(raw, 0, line, StandardCharsets.ISO_8859_1));
        if (line == raw.length || !first.matches()) {
            throw new Failure(Failure.CORRUPT_METADATA, path + " is not a manifest");
        }
        if (!VERSIONS.contains(first.group(1))) {
            throw new Failure(Failure.NEWER_FORMAT,
                    path + " has version " + first.group(1) + ", which is not known",
                    "upgrade this liftlog: `liftlog docs how-to/upgrade`");
        }
        int body = line + 1;
        int crc = Bytes.crc32c(raw, body, raw.length - body);
        if (crc != Integer.parseUnsignedInt(first.group(2), 16)) {
            throw new Failure(Failure.CORRUPT_METADATA, "the checksum of " + path + " does not match");
        }
        try {
            last.manifest = parse(JSON.readTree(raw, body, raw.length - body));
            last.raw = raw;
            return last.manifest;
        } catch (IOException | NullPointerException error) {
            throw new Failure(Failure.CORRUPT_METADATA, path + " lacks a field", "", error);
        }
    }

    private static Manifest parse(JsonNode root) {
        List<Segment> segments = new ArrayList<>();
        for (JsonNode one : root.get("segments")) {
            segments.add(new Segment(
                    fileName(one.get("base_offset").asLong(), one.get("generation").asLong()),
                    one.get("base_offset").asLong(),
                    one.get("generation").asLong(),
                    one.get("next_offset").asLong(),
                    one.get("size_bytes").asLong(),
                    one.get("max_timestamp_ns").asLong()));
        }
        List<Quarantined> quarantined = new ArrayList<>();
        for (JsonNode one : root.get("quarantined")) {
            quarantined.add(new Quarantined(
                    one.get("first_offset").asLong(),
                    one.get("next_offset").asLong(),
                    one.get("segment").asText(),
                    one.get("position").asLong(),
                    one.get("end_position").asLong(),
                    !one.get("reason").asText().equals(SKIPPED)));
        }
        List<Erased> erased = new ArrayList<>();
        for (JsonNode one : root.path("erased")) {
            erased.add(new Erased(
                    one.get("first_offset").asLong(),
                    one.get("next_offset").asLong(),
                    one.get("number").asLong(),
                    one.get("count").asLong(),
                    one.get("size_bytes").asLong(),
                    (int) one.get("crc32c").asLong()));
        }
        List<long[]> epochs = new ArrayList<>();
        for (JsonNode one : root.get("epochs")) {
            epochs.add(new long[] {one.get(0).asLong(), one.get(1).asLong()});
        }
        String incarnation = root.get("incarnation").asText();
        long generation = root.path("generation").asLong();
        if (segments.isEmpty()) {
            throw new Failure(Failure.CORRUPT_METADATA, "a manifest lists no segment");
        }
        return new Manifest(
                generation == 0 ? incarnation : incarnation + ":" + generation,
                root.get("leader_epoch").asLong(),
                root.get("log_start_offset").asLong(),
                root.get("high_watermark").asLong(),
                root.path("cleaned_below").asLong(),
                root.path("replicated").asBoolean(),
                isCompacted(root.path("metadata").path("settings").path("compaction")),
                segments,
                quarantined,
                erased,
                new Epochs(epochs));
    }

    private static boolean isCompacted(JsonNode compaction) {
        return compaction.isObject() && compaction.path("enabled").asBoolean(true);
    }

    private static String fileName(long baseOffset, long generation) {
        String stem = String.format("%020d", baseOffset);
        return generation == 0 ? stem + ".log" : stem + "." + generation + ".log";
    }
}
