package liftlog.files;

import liftlog.records.Bytes;

/**
 * The checksums of parts of a segment's batches. The head of a batch is what lies before the bytes of
 * its values. With them a read that needs few values, or none, leaves the rest where it is.
 */
final class BatchParts {
    static final int ENTRY = 16;

    private static final int NO_VALUES = 0xFFFFFFFF;

    private final byte[] entries;
    private final int start;
    private final int count;
    private final byte[] checks; // of values; null: none
    private int cursor;

    BatchParts(byte[] entries, int start, byte[] checks) {
        this.entries = entries;
        this.start = start;
        this.count = (entries.length - start) / ENTRY;
        this.checks = checks;
    }

    /** The number of the batch that begins at a position; -1 if none does. */
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

    /** How many bytes the head has; 0: the batch is read whole. */
    int headBytes(int i) {
        return Bytes.i32(entries, start + i * ENTRY + 4);
    }

    /** Of the head without the 64 bytes of the header, which have their own. */
    int headCheck(int i) {
        return Bytes.i32(entries, start + i * ENTRY + 8);
    }

    /** Whether so many values of that batch have a checksum each. */
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
