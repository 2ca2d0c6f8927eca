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
    private static final long LOWEST = 0x0001_0001_0001_0001L; // lowest bit of each of four ids
    private static final long HIGHEST = LOWEST << 15;

    /** The position of a binary column: count + 1 ends, possibly a bitmap, and the data. */
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
    private long readable; // end of the bytes that were read; the values may follow
    private int offsetDeltas;
    private int timeDeltas;
    private int subjectIds;
    private boolean areIdsChecked;
    private int first;
    private int last;
    private final BitSet hidden = new BitSet(); // erased records between first and last
    private int hiddenBelow; // no record from this one on was hidden yet

    /**
     * Shows the batch at {@code at}, whose header was read and whose body was checked. Its bytes
     * must not change while it is shown. Throws CorruptBatch if the columns cannot be decompressed,
     * and Failure if the columns contradict each other although the checksum is right.
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
     * Shows an uncompressed batch whose head was read and checked. The head has {@code size} bytes
     * and ends before the values. The bytes at the places of the values are undefined. Throws
     * CorruptBatch if the columns show that the values begin at another place.
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

    /**
     * Shows a batch of which only the header was read. Only the offsets and times from the header
     * may be used.
     */
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

    /** Hides the record with this offset, if there is one. Call it with ascending offsets. */
    public void hide(long offset) {
        int row = offset - header.baseOffset() < header.recordCount()
                ? (int) (offset - header.baseOffset())
                : header.recordCount() - 1;
        if (header.has(OFFSET_DELTAS)) { // holes can only lower its number
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

    /** Returns true if a record between {@code first} and {@code last} may be hidden. */
    public boolean hidesSome() {
        return hiddenBelow > 0;
    }

    /** Returns true if the record is erased. */
    public boolean isHidden(int row) {
        return hidden.get(row);
    }

    /** Returns the number of records that are not hidden. */
    public int shownCount() {
        int count = last - first;
        for (int row = hidden.nextSetBit(first); 0 <= row && row < last;
                row = hidden.nextSetBit(row + 1)) {
            count--;
        }
        return count;
    }

    /** Hides the records below {@code from}, and the records from {@code to} on. */
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

    /** Returns the number of the first record that is not hidden. Records are numbered from 0. */
    public int first() {
        return first;
    }

    /** Returns the number after the last record that is not hidden. */
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

    /** Returns the timestamp of a record in whole microseconds since 1970. */
    public long timestampUs(int row) {
        return timestampNs(row) / 1000;
    }

    /** Returns the timestamp of a record in nanoseconds since 1970. */
    public long timestampNs(int row) {
        long base = header.baseTimestampNs();
        return header.has(TIMESTAMP_DELTAS)
                ? base + 1000 * Bytes.u32(bytes, timeDeltas + 4 * row)
                : base;
    }

    /** Returns the entry of a record in the subject dictionary. */
    public int subjectId(int row) {
        return header.has(SUBJECT_IDS) ? Bytes.u16(bytes, subjectIds + 2 * row) : 0;
    }

    /**
     * Writes to {@code into} the records of [{@code from}, {@code to}) with this entry of the
     * subject dictionary, and returns their number. Checks that the other records have a valid
     * entry, too.
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
            if ((difference - LOWEST & ~difference & HIGHEST) != 0) { // one of the four is zero
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
        areIdsChecked = true; // the ids of all shown records
        return found;
    }

    /**
     * Returns the entry of the subject dictionary with this name; -1 if there is none, -2 if
     * several entries have this name.
     */
    public int subjectEntry(byte[] name) {
        int most = Bytes.i32(bytes, subjects.ends + 4 * subjects.count);
        int tail = name.length - 8; // most names differ in their last bytes
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

    /** Returns the number of entries of the subject dictionary. */
    public int subjectCount() {
        return subjects.count;
    }

    public boolean isNull(Binary column, int item) {
        return column.nullable && (bytes[column.bitmap + (item >> 3)] >> (item & 7) & 1) == 0;
    }

    /** Returns the index in {@code bytes} at which an item of a checked column begins. */
    public int start(Binary column, int item) {
        return column.data + Bytes.i32(bytes, column.ends + 4 * item);
    }

    /** Returns the number of bytes of an item of a checked column. */
    public int size(Binary column, int item) {
        int at = column.ends + 4 * item;
        return Bytes.i32(bytes, at + 4) - Bytes.i32(bytes, at);
    }

    /**
     * Checks the ends of all items of a column once. Must be called before an item is used, unless
     * the item was checked alone.
     */
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
     * Checks the ends of one item. If each used item is checked in this way, the column itself need
     * not be checked. {@code before} is the end of the item that was checked last, at first 0.
     * Returns the end of this item.
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

    /** Checks, once per batch, that the subject of each record is in the dictionary. */
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

    /**
     * Returns a number for each of four ids. If an id has no entry in the dictionary, the sum of
     * the number and the id has its highest bit set.
     */
    private long roomForIds() {
        return (0x7FFF - Math.min(subjects.count - 1, 0x7FFF)) * LOWEST;
    }

    /**
     * Checks these ids exactly. If no highest bit is set in {@code beyond}, all of them are valid,
     * and the method does nothing.
     */
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
