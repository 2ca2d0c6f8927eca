package liftlog.files;

import java.io.IOException;
import java.util.Arrays;
import java.util.zip.CRC32C;
import liftlog.records.BatchHeader;
import liftlog.records.Bytes;

/**
 * The entries of the subject index beside a sealed segment, which locate the runs with the records
 * on each subject. docs/reference/storage-format.md describes the format.
 */
final class SubjectIndex {
    private static final int MAGIC = 0x58534C4C;
    private static final int VERSION = 1;
    private static final int HEAD = 48;
    private static final int SUBJECT = 16;
    private static final int RUN = 32;
    private static final long MOST_BYTES = 64 << 20; // of an index, so that it fits into memory
    private static final int MOST_RECORDS = 0xFFFF;

    /** The numbers of the runs of one subject. */
    record Runs(int first, int end) {}

    private final byte[] tables;
    private final int subjects;
    private final int runs;

    private SubjectIndex(byte[] tables, int subjects, int runs) {
        this.tables = tables;
        this.subjects = subjects;
        this.runs = runs;
    }

    /** Opens the index of a segment. Throws FileNotFoundException. */
    static FileStore.Opened open(FileStore store, String directory, Manifest.Segment segment)
            throws IOException {
        String path = directory + "/" + segment.file();
        return store.open(path.substring(0, path.length() - ".log".length()) + ".subjects");
    }

    /**
     * Reads the entries. Returns null if the index has no entries, is damaged, or belongs to
     * another state of the segment.
     */
    static SubjectIndex read(FileStore.Opened file, Manifest.Segment segment,
            Manifest manifest) throws IOException {
        byte[] head = new byte[HEAD];
        boolean isOurs = file.read(0, head, 0, HEAD) == HEAD
                && Bytes.i32(head, 0) == MAGIC
                && Bytes.i32(head, 4) == VERSION
                && Bytes.i32(head, 12) == manifest.historyCheck(segment)
                && Bytes.i64(head, 16) == segment.sizeBytes()
                && Bytes.i64(head, 24) == segment.nextOffset()
                && Bytes.u32(head, 40) == file.size();
        long subjects = Bytes.u32(head, 8);
        long runs = Bytes.u32(head, 32);
        long size = subjects * SUBJECT + runs * RUN + Bytes.u32(head, 36);
        if (!isOurs || subjects == 0 || size > Math.min(MOST_BYTES, file.size() - HEAD)) {
            return null;
        }
        byte[] tables = new byte[(int) size];
        int length = file.read(HEAD, tables, 0, tables.length);
        CRC32C check = new CRC32C();
        check.update(head, 0, HEAD - 4);
        check.update(tables, 0, length);
        if (length < size || (int) check.getValue() != Bytes.i32(head, HEAD - 4)) {
            return null;
        }
        SubjectIndex found = new SubjectIndex(tables, (int) subjects, (int) runs);
        return found.isConsistent() ? found : null;
    }

    /** Checks the entries, because a checksum does not prove that the writer was correct. */
    private boolean isConsistent() {
        long names = tables.length - (long) subjects * SUBJECT - (long) runs * RUN;
        long before = 0;
        boolean isGood = true;
        for (int i = 0; i < subjects; i++) {
            long end = Bytes.u32(tables, i * SUBJECT) + Bytes.u32(tables, i * SUBJECT + 4);
            long run = Bytes.u32(tables, i * SUBJECT + 8);
            isGood &= end <= names && before <= run && run <= runs;
            before = run;
        }
        return isGood;
    }

    /**
     * Returns the runs of a subject; an empty range if the subject has no records; null if two
     * subjects have this name.
     */
    Runs runsOf(byte[] name) {
        int low = 0;
        int high = subjects;
        while (low < high) {
            int middle = (low + high) >>> 1;
            if (compare(middle, name) < 0) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        if (low == subjects || compare(low, name) != 0) {
            return new Runs(0, 0);
        }
        if (low + 1 < subjects && compare(low + 1, name) == 0) {
            return null;
        }
        return new Runs(firstRun(low), low + 1 < subjects ? firstRun(low + 1) : runs);
    }

    private int compare(int subject, byte[] name) {
        int at = subjects * SUBJECT + runs * RUN + Bytes.i32(tables, subject * SUBJECT);
        int size = Bytes.i32(tables, subject * SUBJECT + 4);
        return Arrays.compareUnsigned(tables, at, at + size, name, 0, name.length);
    }

    private int firstRun(int subject) {
        return Bytes.i32(tables, subject * SUBJECT + 8);
    }

    /** The size of the entries and the names, which were read. */
    int sizeBytes() {
        return tables.length;
    }

    // --- of a run ---

    /**
     * Returns false if the entry of a run is impossible in a file of this size. The entries of
     * other runs are not checked.
     */
    boolean isPossible(int run, long fileSize) {
        return word(run, 8) + word(run, 12) <= fileSize
                && word(run, 12) < MOST_BYTES
                && word(run, 16) >= BatchHeader.SIZE
                && word(run, 16) <= word(run, 24)
                && word(run, 20) > 0
                && word(run, 20) <= MOST_RECORDS
                && word(run, 24) <= Integer.MAX_VALUE - 8;
    }

    /** Returns the first offset of a run, relative to the base offset of the segment. */
    long first(int run) {
        return word(run, 0);
    }

    long last(int run) {
        return word(run, 4);
    }

    long position(int run) {
        return word(run, 8);
    }

    /** Returns the number of stored bytes of a run. */
    int size(int run) {
        return (int) word(run, 12);
    }

    int headBytes(int run) {
        return (int) word(run, 16);
    }

    int records(int run) {
        return (int) word(run, 20);
    }

    /** Returns the length of a run's batch with its values. */
    int length(int run) {
        return (int) word(run, 24);
    }

    int check(int run) {
        return (int) word(run, 28);
    }

    private long word(int run, int field) {
        return Bytes.u32(tables, subjects * SUBJECT + run * RUN + field);
    }
}
