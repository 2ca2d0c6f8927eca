package liftlog.files;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.zip.CRC32C;
import liftlog.records.Bytes;
import liftlog.scan.Extent;
import liftlog.scan.Narrowing;

/**
 * The sketch beside a sealed segment: which of its blocks can hold records of a subject, with a key
 * or of a time. The format is described in docs/reference/storage-format.md.
 */
final class Sketch {
    private static final int MAGIC = 0x4B534C4C;
    private static final int VERSION = 1;
    private static final int HEAD = 40;
    private static final int ENTRY = 32;
    private static final int PROBES = 7;
    private static final long SPREAD = 0x9E3779B97F4A7C15L;

    private final byte[] raw;
    private final int count;
    private final Manifest.Segment segment;

    private Sketch(byte[] raw, int count, Manifest.Segment segment) {
        this.raw = raw;
        this.count = count;
        this.segment = segment;
    }

    /** Null if it is missing, damaged, or of another state of the segment. */
    static Sketch read(FileStore store, String directory, Manifest.Segment segment, String lineage)
            throws IOException {
        String path = directory + "/" + segment.file();
        byte[] raw;
        try {
            raw = store.readAll(path.substring(0, path.length() - ".log".length()) + ".sketch");
        } catch (FileNotFoundException error) {
            return null;
        } catch (IOException error) {
            if (!Disk.isUnreadable(error)) {
                throw error;
            }
            return null; // all that it says is in the segment, too
        }
        byte[] name = lineage.getBytes(StandardCharsets.UTF_8);
        boolean isOurs = raw.length >= HEAD
                && Bytes.i32(raw, 0) == MAGIC
                && Bytes.i32(raw, 4) == VERSION
                && Bytes.i32(raw, 12) == Bytes.crc32c(name, 0, name.length)
                && Bytes.i64(raw, 16) == segment.sizeBytes()
                && Bytes.i64(raw, 24) == segment.nextOffset();
        long number = isOurs ? Bytes.u32(raw, 8) : 0;
        long end = HEAD + number * ENTRY;
        return number > 0 && end <= raw.length && isIntact(raw, (int) end)
                ? new Sketch(raw, (int) number, segment)
                : null;
    }

    private static boolean isIntact(byte[] raw, int end) {
        CRC32C check = new CRC32C();
        check.update(raw, 0, HEAD - 4);
        check.update(raw, HEAD, end - HEAD);
        return (int) check.getValue() == Bytes.i32(raw, HEAD - 4)
                && Bytes.crc32c(raw, end, raw.length - end) == Bytes.i32(raw, HEAD - 8);
    }

    /** The blocks, which tile the segment; those without a wanted record have the size 0. */
    List<Extent> extents(Narrowing wanted) {
        List<Extent> found = new ArrayList<>();
        long subject = wanted.subject() == null
                ? -1
                : hash('s', wanted.subject().getBytes(StandardCharsets.UTF_8));
        long key = wanted.key() == null ? -1 : hash('k', wanted.key());
        for (int i = 0; i < count; i++) {
            boolean some = number(i, 16) >= wanted.notBeforeNs()
                    && number(i, 8) <= wanted.notAfterNs()
                    && (subject < 0 || holds(i, subject))
                    && (key < 0 || holds(i, key));
            boolean isLast = i == count - 1;
            long first = segment.baseOffset() + word(i, 0);
            long next = isLast ? segment.nextOffset() : segment.baseOffset() + word(i + 1, 0);
            long end = isLast ? segment.sizeBytes() : word(i + 1, 4);
            found.add(new Extent(first, next, some ? end - word(i, 4) : 0));
        }
        return found;
    }

    private boolean holds(int i, long item) {
        int start = HEAD + count * ENTRY + (int) word(i, 24);
        long bits = 8 * word(i, 28);
        if (bits == 0) {
            return false;
        }
        long step = item * SPREAD >>> 32 | 1;
        for (int probe = 0; probe < PROBES; probe++) {
            long bit = (item + probe * step) % bits;
            if ((raw[start + (int) (bit >> 3)] >> (bit & 7) & 1) == 0) {
                return false;
            }
        }
        return true;
    }

    private static long hash(char kind, byte[] item) {
        CRC32C sum = new CRC32C();
        sum.update(kind);
        sum.update(item, 0, item.length);
        return sum.getValue();
    }

    private long word(int i, int field) {
        return Bytes.u32(raw, HEAD + i * ENTRY + field);
    }

    private long number(int i, int field) {
        return Bytes.i64(raw, HEAD + i * ENTRY + field);
    }
}
