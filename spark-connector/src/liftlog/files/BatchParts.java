package liftlog.files;

import liftlog.records.Bytes;

/**
 * Checksums of the parts of a segment's batches. The head of a batch consists of all bytes before
 * its values. With these checksums, a read that needs few values or none can leave out the other
 * values.
 */
final class BatchParts {
    static final int ENTRY = 16;

    private static final int NO_VALUES = 0xFFFFFFFF;

    private final byte[] entries;
    private final int start;
    private final int count;
    private final byte[] checks; // of values; null if there are none
    private int cursor;

    BatchParts(byte[] entries, int start, byte[] checks) {
        this.entries = entries;
        this.start = start;
        this.count = (entries.length - start) / ENTRY;
        this.checks = checks;
    }

    /** Returns the number of the batch that begins at a position; -1 if no batch begins there. */
    int at(long position) {
        if (cursor < count && position(cursor) == position) {
            return cursor;
        }
        int low = cursor + 1 < count && position(cursor + 1) == position ? cursor + 1 : 0;
        int high = low > 0 ? low : count - 1;
        while (low < high) {
            int middle = (low + high) >>> 1;
            if (position(middle) < position) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        if (position(low) != position) {
            return -1;
        }
        cursor = low;
        return low;
    }

    int count() {
        return count;
    }

    long position(int i) {
        return Bytes.u32(entries, start + i * ENTRY);
    }

    /** Returns the number of bytes of the head; 0 if the batch must be read whole. */
    int headBytes(int i) {
        return Bytes.i32(entries, start + i * ENTRY + 4);
    }

    /**
     * Returns the checksum of the head without the 64 bytes of the header, which have their own
     * checksum.
     */
    int headCheck(int i) {
        return Bytes.i32(entries, start + i * ENTRY + 8);
    }

    /** Returns true if each of the {@code values} values of this batch has a checksum. */
    boolean hasChecks(int i, int values) {
        int index = index(i);
        return checks != null && index != NO_VALUES
                && 4 * (Integer.toUnsignedLong(index) + values) <= checks.length;
    }

    int check(int i, int record) {
        return Bytes.i32(checks, 4 * (index(i) + record));
    }

    private int index(int i) {
        return Bytes.i32(entries, start + i * ENTRY + 12);
    }
}
