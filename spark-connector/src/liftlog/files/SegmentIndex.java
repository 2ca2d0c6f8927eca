package liftlog.files;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import liftlog.records.Bytes;

/**
 * The sparse index of one segment. The file has entries of 16 bytes (offset - base, position,
 * newest timestamp so far), and a footer of 40 bytes with checksums, which names the segment. The
 * index is only an optimization. It counts as missing if it is damaged, belongs to another segment,
 * or has version 1, which names no segment.
 */
final class SegmentIndex {
    private static final int ENTRY = 16;
    private static final int FOOTER = 40;
    private static final int MAGIC = 0x32494C4C;

    private final byte[] entries;
    private final int count;
    private final long baseOffset;

    private SegmentIndex(byte[] entries, int count, long baseOffset) {
        this.entries = entries;
        this.count = count;
        this.baseOffset = baseOffset;
    }

    /** A position at which a batch begins, and its offset. */
    record Entry(long offset, long position) {}

    /** Reads the index beside a segment; returns an empty index if there is no usable one. */
    static SegmentIndex read(
            FileStore store, String segmentPath, Manifest.Segment segment, String incarnation) {
        byte[] raw;
        try {
            raw = store.readAll(indexPath(segmentPath));
        } catch (IOException error) {
            raw = new byte[0]; // the index only repeats content of the segment
        }
        int footer = raw.length - FOOTER;
        long base = segment.baseOffset();
        boolean good = footer >= 0
                && count(raw, footer, segment, incarnation) * ENTRY == footer
                && Bytes.crc32c(raw, 0, footer) == Bytes.i32(raw, footer + 32)
                && ascends(raw, footer / ENTRY);
        SegmentIndex whole = new SegmentIndex(raw, good ? footer / ENTRY : 0, base);
        // The segment may have been truncated since the index was written.
        int count = whole.countBelow(4, segment.sizeBytes());
        return new SegmentIndex(raw, count, base);
    }

    /**
     * Returns the number of entries of an index file; 0 if its footer is damaged or names another
     * segment.
     */
    static long count(FileStore.Opened file, Manifest.Segment segment, String incarnation)
            throws IOException {
        byte[] footer = new byte[FOOTER];
        long end = file.size() - FOOTER;
        boolean isRead = end >= 0 && file.read(end, footer, 0, FOOTER) == FOOTER;
        long count = isRead ? count(footer, 0, segment, incarnation) : 0;
        return count * ENTRY == end ? count : 0;
    }

    private static long count(byte[] raw, int at, Manifest.Segment segment, String incarnation) {
        byte[] name = incarnation.getBytes(StandardCharsets.US_ASCII);
        boolean good = Bytes.i32(raw, at + 24) == MAGIC
                && Bytes.crc32c(raw, at, FOOTER - 4) == Bytes.i32(raw, at + 36)
                && Bytes.i64(raw, at) == segment.baseOffset()
                && Bytes.u32(raw, at + 8) == segment.generation()
                && Bytes.i32(raw, at + 12) == Bytes.crc32c(name, 0, name.length)
                && Bytes.i64(raw, at + 16) >= segment.sizeBytes();
        return good ? Bytes.u32(raw, at + 28) : 0;
    }

    static String indexPath(String segmentPath) {
        return segmentPath.substring(0, segmentPath.length() - ".log".length()) + ".index";
    }

    /** Returns the last entry at or before an offset. */
    Entry floor(long offset) {
        return entry(countBelow(0, offset - baseOffset + 1) - 1);
    }

    /** Returns an entry. All records before the entry are older than this time. */
    Entry floorTime(long timestampNs) {
        return entry(countBelow(8, timestampNs) - 1);
    }

    /** Returns the first entry at or after an offset; null if there is none. */
    Entry from(long offset) {
        int i = countBelow(0, offset - baseOffset);
        return i < count ? entry(i) : null;
    }

    /** Returns the first entry after a position; null if there is none. */
    Entry after(long position) {
        int i = countBelow(4, position + 1);
        return i < count ? entry(i) : null;
    }

    private Entry entry(int i) {
        if (i < 0) {
            return new Entry(baseOffset, 0);
        }
        int at = i * ENTRY;
        return new Entry(baseOffset + Bytes.u32(entries, at), Bytes.u32(entries, at + 4));
    }

    /** Returns the number of entries with a smaller number in this field. */
    private int countBelow(int field, long limit) {
        int low = 0;
        int high = count;
        while (low < high) {
            int middle = (low + high) >>> 1;
            if (number(entries, middle, field) < limit) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        return low;
    }

    private static long number(byte[] raw, int i, int field) {
        int at = i * ENTRY + field;
        return field == 8 ? Bytes.i64(raw, at) : Bytes.u32(raw, at);
    }

    private static boolean ascends(byte[] raw, int count) {
        boolean ascend = true;
        for (int i = 1; i < count; i++) {
            ascend &= number(raw, i, 0) > number(raw, i - 1, 0)
                    && number(raw, i, 4) > number(raw, i - 1, 4)
                    && number(raw, i, 8) >= number(raw, i - 1, 8);
        }
        return ascend;
    }
}
