package liftlog.files;

import java.io.FileNotFoundException;
import java.io.IOException;
import liftlog.records.Bytes;

/**
 * The sparse index of one segment: entries of 16 bytes (offset - base, position, newest timestamp
 * so far), then a footer of 16 bytes with checksums.
 */
final class SegmentIndex {
    private static final int ENTRY = 16;
    private static final int MAGIC = 0x58494C4C;

    private final byte[] entries;
    private final int count;
    private final long baseOffset;

    private SegmentIndex(byte[] entries, int count, long baseOffset) {
        this.entries = entries;
        this.count = count;
        this.baseOffset = baseOffset;
    }

    /** A place at which a batch begins. */
    record Entry(long offset, long position) {}

    /** The index beside a segment; an empty one if it is missing or damaged. */
    static SegmentIndex read(FileStore store, String segmentPath, long baseOffset)
            throws IOException {
        byte[] raw;
        try {
            raw = store.readAll(indexPath(segmentPath));
        } catch (FileNotFoundException error) {
            raw = new byte[0];
        } catch (IOException error) {
            if (!Disk.isUnreadable(error)) {
                throw error;
            }
            raw = new byte[0]; // all that it says is in the segment, too
        }
        int footer = raw.length - ENTRY;
        boolean good = footer >= 0
                && Bytes.i32(raw, footer) == MAGIC
                && Bytes.u32(raw, footer + 4) * ENTRY == footer
                && Bytes.crc32c(raw, footer, 12) == Bytes.i32(raw, footer + 12)
                && Bytes.crc32c(raw, 0, footer) == Bytes.i32(raw, footer + 8)
                && ascends(raw, footer / ENTRY);
        return new SegmentIndex(raw, good ? footer / ENTRY : 0, baseOffset);
    }

    static String indexPath(String segmentPath) {
        return segmentPath.substring(0, segmentPath.length() - ".log".length()) + ".index";
    }

    /** The last entry at or before an offset. */
    Entry floor(long offset) {
        return entry(countBelow(0, offset - baseOffset + 1) - 1);
    }

    /** An entry before which everything is older than that time. */
    Entry floorTime(long timestampNs) {
        return entry(countBelow(8, timestampNs) - 1);
    }

    /** The first entry at or after an offset; null if there is none. */
    Entry from(long offset) {
        int i = countBelow(0, offset - baseOffset);
        return i < count ? entry(i) : null;
    }

    /** The first entry behind a position; null if there is none. */
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

    /** How many entries have a smaller number in the field. */
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
