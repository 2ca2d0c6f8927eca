package liftlog.records;

import static liftlog.records.BatchHeader.ESCAPED_SUBJECTS;
import static liftlog.records.BatchHeader.HEADERS;
import static liftlog.records.BatchHeader.KEYS;
import static liftlog.records.BatchHeader.OFFSET_DELTAS;
import static liftlog.records.BatchHeader.SUBJECT_IDS;
import static liftlog.records.BatchHeader.TIMESTAMP_DELTAS;
import static liftlog.records.BatchHeader.TOMBSTONES;

import java.util.Arrays;
import java.util.BitSet;

/**
 * A view of one record batch at a time; a reader uses one object for all its batches.
 *
 * <p>A checksum does not prove that the writer was correct. So {@code load} compares every position
 * with the end of the batch, and a column checks its offsets when it is first used.
 */
public final class RecordBatch implements AutoCloseable {
    private static final long LOWEST = 0x0001_0001_0001_0001L; // the bits of four subject ids
    private static final long HIGHEST = LOWEST << 15;

    /** Where a binary column lies: count + 1 ends, perhaps a bitmap, the data. */
    public static final class Binary {
        int ends;
        int bitmap;
        int data;
        int count;
        boolean present;
        boolean nullable;
        boolean checked;

        public boolean isPresent() {
            return present;
        }

        public boolean isNullable() {
            return nullable;
        }
    }

    public final Binary subjects = new Binary();
    public final Binary keys = new Binary();
    public final Binary headers = new Binary();
    public final Binary values = new Binary();

    private final Codecs codecs = new Codecs();
    private BatchHeader header;
    private byte[] bytes;
    private long end;
    private long readable; // the end of what was read; the values can lie behind it
    private int offsetDeltas;
    private int timeDeltas;
    private int subjectIds;
    private boolean areIdsChecked;
    private int first;
    private int last;
    private final BitSet hidden = new BitSet(); // records between first and last that are erased
    private int hiddenBelow; // no later record was hidden yet

    /**
     * Shows the batch at {@code at}, whose header was read and whose body was checked. Its bytes
     * must not change as long as it is shown. Throws CorruptBatch if the columns cannot be
     * decompressed, and Failure if they contradict each other although their checksum is right.
     */
    public void load(byte[] stored, int at, BatchHeader of) throws CorruptBatch {
        header = of;
        int columns;
        if (of.codec() == 0) {
            bytes = stored;
            columns = at + BatchHeader.SIZE;
            end = at + (long) of.length();
        } else {
            bytes = codecs.inflate(stored, at, of);
            columns = 0;
            end = Codecs.length(stored, at);
        }
        readable = end;
        locate(columns);
        showAll();
    }

    /**
     * Shows a batch without compression of which the first {@code size} bytes, up to those of the
     * values, were read and checked. Where the values belong are other bytes, perhaps none. Throws
     * CorruptBatch if the columns say that the values begin elsewhere.
     */
    public void loadHead(byte[] stored, int at, BatchHeader of, int size) throws CorruptBatch {
        header = of;
        bytes = stored;
        end = at + (long) of.length();
        readable = at + (long) size;
        try {
            locate(at + BatchHeader.SIZE);
        } catch (Failure error) {
            throw new CorruptBatch(error.getMessage());
        }
        if (values.data != readable) {
            throw new CorruptBatch("the values begin elsewhere");
        }
        showAll();
    }

    /** Shows a batch of which nothing is used but offsets and times that its header tells. */
    public void loadHeader(BatchHeader of) {
        header = of;
        showAll();
    }

    private void showAll() {
        first = 0;
        last = header.recordCount();
        if (hiddenBelow > 0) {
            hidden.clear();
            hiddenBelow = 0;
        }
    }

    /** Hides the record with this offset, if there is one. The offsets must ascend. */
    public void hide(long offset) {
        int row = offset - header.baseOffset() < header.recordCount()
                ? (int) (offset - header.baseOffset())
                : header.recordCount() - 1;
        if (header.has(OFFSET_DELTAS)) { // with holes, so it has this number or a lower one
            int low = hiddenBelow;
            while (low < row) {
                int middle = (low + row) >>> 1;
                if (offset(middle) < offset) {
                    low = middle + 1;
                } else {
                    row = middle;
                }
            }
        }
        if (row >= hiddenBelow && offset(row) == offset) {
            hidden.set(row);
            hiddenBelow = row + 1;
        }
    }

    /** Whether perhaps not all records between {@code first} and {@code last} are to be shown. */
    public boolean hidesSome() {
        return hiddenBelow > 0;
    }

    /** Whether a record was erased. */
    public boolean isHidden(int row) {
        return hidden.get(row);
    }

    /** How many records are to be shown. */
    public int shownCount() {
        int count = last - first;
        for (int row = hidden.nextSetBit(first); 0 <= row && row < last;
                row = hidden.nextSetBit(row + 1)) {
            count--;
        }
        return count;
    }

    /** Hides the records below {@code from} and those at or above {@code to}. */
    public void trim(long from, long to) {
        if (from <= header.baseOffset() && to >= header.nextOffset()) {
            return;
        }
        while (first < last && offset(first) < from) {
            first++;
        }
        while (last > first && offset(last - 1) >= to) {
            last--;
        }
    }

    public BatchHeader header() {
        return header;
    }

    public byte[] bytes() {
        return bytes;
    }

    /** The first record that is not hidden; records are numbered from 0. */
    public int first() {
        return first;
    }

    /** After the last record that is not hidden. */
    public int last() {
        return last;
    }

    // --- columns ---

    public long offset(int row) {
        if (!header.has(OFFSET_DELTAS)) {
            return header.baseOffset() + row;
        }
        return header.baseOffset() + Bytes.u32(bytes, offsetDeltas + 4 * row);
    }

    /** In whole microseconds since 1970. */
    public long timestampUs(int row) {
        return timestampNs(row) / 1000;
    }

    /** In nanoseconds since 1970. */
    public long timestampNs(int row) {
        long base = header.baseTimestampNs();
        return header.has(TIMESTAMP_DELTAS)
                ? base + 1000 * Bytes.u32(bytes, timeDeltas + 4 * row)
                : base;
    }

    /** The entry of the subject dictionary for a record. */
    public int subjectId(int row) {
        return header.has(SUBJECT_IDS) ? Bytes.u16(bytes, subjectIds + 2 * row) : 0;
    }

    /**
     * The records of [{@code from}, {@code to}) with this entry of the subject dictionary go into
     * {@code into}; returns how many they are. Checks that the others have an entry, too.
     */
    public int recordsWithSubject(int entry, int from, int to, int[] into) {
        int found = 0;
        if (!header.has(SUBJECT_IDS)) {
            for (int record = from; entry == 0 && record < to; record++) {
                into[found++] = record;
            }
            return found;
        }
        long four = entry * LOWEST;
        long room = roomForIds();
        long beyond = 0;
        int record = from;
        int at = subjectIds + 2 * from;
        for (; record + 4 <= to; record += 4, at += 8) {
            long ids = Bytes.i64(bytes, at);
            beyond |= ids | ids + room;
            long difference = ids ^ four;
            if ((difference - LOWEST & ~difference & HIGHEST) != 0) { // one of them is zero
                for (int i = record; i < record + 4; i++) {
                    if (subjectId(i) == entry) {
                        into[found++] = i;
                    }
                }
            }
        }
        checkSubjectIds(from, record, beyond);
        checkSubjectIds(record, to, HIGHEST);
        for (; record < to; record++) {
            if (subjectId(record) == entry) {
                into[found++] = record;
            }
        }
        areIdsChecked = true; // of all that are shown
        return found;
    }

    /** The entry of the subject dictionary with this name; -1: there is none, -2: several have it. */
    public int subjectEntry(byte[] name) {
        int most = Bytes.i32(bytes, subjects.ends + 4 * subjects.count);
        int tail = name.length - 8; // most names differ at their ends
        long last = tail < 0 ? 0 : Bytes.i64(name, tail);
        int found = -1;
        int before = 0;
        boolean backwards = false;
        for (int i = 0, at = subjects.ends + 4; i < subjects.count; i++, at += 4) {
            int next = Bytes.i32(bytes, at);
            backwards |= next < before;
            if (next - before == name.length && 0 <= before && before <= next && next <= most) {
                int from = subjects.data + before;
                if ((tail < 0 || Bytes.i64(bytes, from + tail) == last)
                        && Arrays.equals(bytes, from, from + name.length, name, 0, name.length)) {
                    found = found == -1 ? i : -2;
                }
            }
            before = next;
        }
        if (backwards) {
            throw backwards();
        }
        subjects.checked = true;
        return found;
    }

    /** How many subjects the batch has. */
    public int subjectCount() {
        return subjects.count;
    }

    public boolean isNull(Binary column, int item) {
        return column.nullable && (bytes[column.bitmap + (item >> 3)] >> (item & 7) & 1) == 0;
    }

    /** Where an item of a checked column begins in {@code bytes}. */
    public int start(Binary column, int item) {
        return column.data + Bytes.i32(bytes, column.ends + 4 * item);
    }

    /** How many bytes an item of a checked column has. */
    public int size(Binary column, int item) {
        int at = column.ends + 4 * item;
        return Bytes.i32(bytes, at + 4) - Bytes.i32(bytes, at);
    }

    /** Checks the ends of a column once, before its items are used. */
    public void check(Binary column) {
        if (column.checked) {
            return;
        }
        int before = 0;
        boolean backwards = false;
        for (int i = 0, at = column.ends; i <= column.count; i++, at += 4) {
            int next = Bytes.i32(bytes, at);
            backwards |= next < before;
            before = next;
        }
        if (backwards) {
            throw backwards();
        }
        column.checked = true;
    }

    /**
     * Checks the ends of one item, before it is used: the column need not be checked then. {@code
     * before} is where the last one that was checked ends, at first 0; returns where this one does.
     */
    public int check(Binary column, int item, int before) {
        int at = column.ends + 4 * item;
        int start = Bytes.i32(bytes, at);
        int stop = Bytes.i32(bytes, at + 4);
        int most = Bytes.i32(bytes, column.ends + 4 * column.count);
        if (start < before || stop < start || stop > most) {
            throw backwards();
        }
        return stop;
    }

    /** Checks once that each record's subject is in the dictionary. */
    public void checkSubjectIds() {
        if (areIdsChecked) {
            return;
        }
        int count = header.recordCount();
        long room = roomForIds();
        long beyond = 0;
        int i = 0;
        for (int at = subjectIds; i + 4 <= count; i += 4, at += 8) {
            long four = Bytes.i64(bytes, at);
            beyond |= four | four + room;
        }
        checkSubjectIds(0, i, beyond);
        checkSubjectIds(i, count, HIGHEST);
        areIdsChecked = true;
    }

    /** What leads to a highest bit when it is added to a subject id that has no entry. */
    private long roomForIds() {
        return (0x7FFF - Math.min(subjects.count - 1, 0x7FFF)) * LOWEST;
    }

    /** {@code beyond} has a highest bit if one of these ids may have no entry. */
    private void checkSubjectIds(int from, int to, long beyond) {
        if ((beyond & HIGHEST) != 0 && largestSubjectId(from, to) >= subjects.count) {
            throw contradiction("a subject id points outside the dictionary");
        }
    }

    private int largestSubjectId(int from, int to) {
        int largest = -1;
        for (int i = from; i < to; i++) {
            largest = Math.max(largest, Bytes.u16(bytes, subjectIds + 2 * i));
        }
        return largest;
    }

    @Override
    public void close() {
        codecs.close();
    }

    // --- layout ---

    private void locate(int columns) {
        int count = header.recordCount();
        long at = columns;
        offsetDeltas = (int) at;
        if (header.has(OFFSET_DELTAS)) {
            at += Bytes.padded(4L * count);
        }
        timeDeltas = (int) at;
        if (header.has(TIMESTAMP_DELTAS)) {
            at += Bytes.padded(4L * count);
        }
        int entries = word(at);
        if (word(at + 4) != 0 || entries < 0 || entries == 0 != (count == 0)) {
            throw contradiction("the subject dictionary does not fit the batch");
        }
        at = locate(subjects, at + 8, entries, header.has(ESCAPED_SUBJECTS));
        subjects.nullable = false;
        subjectIds = (int) at;
        areIdsChecked = !header.has(SUBJECT_IDS);
        if (header.has(SUBJECT_IDS)) {
            at += Bytes.padded(2L * count);
        } else if (entries > 1) {
            throw contradiction("several subjects, but no column says which record has which");
        }
        keys.present = header.has(KEYS);
        if (keys.present) {
            at = locate(keys, at, count, true);
        }
        headers.present = header.has(HEADERS);
        if (headers.present) {
            at = locate(headers, at, count, false);
        }
        values.present = true;
        at = locate(values, at, count, header.has(TOMBSTONES));
        if (at != end) {
            throw contradiction("the columns end at " + (at - columns) + ", the batch at "
                    + (end - columns));
        }
        checkOffsets(count);
    }

    private long locate(Binary column, long at, int count, boolean hasBitmap) {
        long ends = at;
        int size = word(ends + 4L * count);
        if (word(ends) != 0 || size < 0) {
            throw contradiction("a column reaches past the end of the batch");
        }
        long bitmap = ends + Bytes.padded(4L * count + 4);
        long data = hasBitmap ? bitmap + Bytes.padded((count + 7) >> 3) : bitmap;
        long following = data + Bytes.padded(size);
        if (following > end) {
            throw contradiction("a column reaches past the end of the batch");
        }
        column.ends = (int) ends;
        column.bitmap = (int) bitmap;
        column.data = (int) data;
        column.count = count;
        column.nullable = hasBitmap;
        column.checked = false;
        return following;
    }

    private int word(long at) {
        if (at + 4 > readable) {
            throw contradiction("a column reaches past the end of the batch");
        }
        return Bytes.i32(bytes, (int) at);
    }

    private void checkOffsets(int count) {
        if (!header.has(OFFSET_DELTAS) || count == 0) {
            return;
        }
        long before = -1;
        boolean ascend = true;
        for (int i = 0; i < count; i++) {
            long delta = Bytes.u32(bytes, offsetDeltas + 4 * i);
            ascend &= delta > before;
            before = delta;
        }
        if (!ascend || header.baseOffset() + before >= header.nextOffset()) {
            throw contradiction("the offset deltas do not ascend inside the batch");
        }
    }

    private static Failure backwards() {
        return contradiction("the offsets of a column run backwards");
    }

    private static Failure contradiction(String message) {
        return new Failure(Failure.CORRUPT_BATCH, message);
    }
}
