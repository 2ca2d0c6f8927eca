package liftlog.scan;

import java.util.HashSet;
import java.util.Set;
import liftlog.records.RecordBatch;

/**
 * Selects the records of a batch that become rows: records on wanted subjects, with wanted keys,
 * and with {@code compact} only the newest record of each key.
 */
public final class Rows {
    private static final int FEW = 4; // from here on, checking all items at once is faster

    private final byte[][] pattern;
    private final ItemSet subjects;
    private final byte[] oneSubject; // null if several may be wanted
    private final ItemSet keys;
    private NewestKeys newest;
    private boolean[] wantedSubjects = new boolean[0];
    private int onlySubject; // -1 if several subjects are wanted
    private int[] chosen = new int[0];
    private int first;
    private int count;
    private boolean all;
    private boolean hides; // true if the batch may have erased records

    public Rows(ScanOptions options) {
        pattern = options.subject() == null ? null : Subjects.tokens(options.subject());
        Narrowing wanted = options.narrowing();
        subjects = wanted.subjects() == null ? null : new ItemSet(wanted.subjects());
        oneSubject = pattern != null || subjects == null ? null : wanted.subjects().only();
        keys = wanted.keys() == null ? null : new ItemSet(wanted.keys());
    }

    /**
     * Returns the columns that decide which records become rows, with or without those of
     * {@code compact}.
     */
    public Set<String> columns(boolean compact) {
        Set<String> found = new HashSet<>(Set.of(Columns.OFFSET));
        if (pattern != null || subjects != null) {
            found.add(Columns.SUBJECT);
        }
        if (keys != null || compact) {
            found.add(Columns.KEY);
        }
        return found;
    }

    /** Returns true if some records may not become rows. */
    public boolean selects() {
        return pattern != null || subjects != null || keys != null || newest != null;
    }

    /** Selects, from now on, only records that are the newest of their key. */
    public void only(NewestKeys found) {
        newest = found;
    }

    /**
     * Selects among the records that the batch shows. Returns the number of records that become
     * rows.
     */
    public int select(RecordBatch batch) {
        first = batch.first();
        count = batch.last() - first;
        boolean bySubject = pattern != null || subjects != null;
        hides = batch.hidesSome();
        all = !bySubject && keys == null && newest == null && !hides;
        if (all || count == 0) {
            return count;
        }
        if (bySubject && !judgeSubjects(batch)) {
            count = 0;
            return 0;
        }
        if (keys != null || newest != null) {
            if (keys != null && !batch.keys.isPresent()) {
                count = 0;
                return 0;
            }
            if (batch.keys.isPresent()) {
                batch.check(batch.keys);
            }
        }
        if (chosen.length < count) {
            chosen = new int[count];
        }
        int last = batch.last();
        int found = 0;
        if (bySubject && onlySubject >= 0) {
            int some = batch.recordsWithSubject(onlySubject, first, last, chosen);
            for (int i = 0; i < some; i++) {
                if (isWanted(batch, chosen[i])) {
                    chosen[found++] = chosen[i];
                }
            }
        } else {
            for (int record = first; record < last; record++) {
                if ((!bySubject || wantedSubjects[batch.subjectId(record)])
                        && isWanted(batch, record)) {
                    chosen[found++] = record;
                }
            }
        }
        count = found;
        return count;
    }

    /** Returns true if the record is wanted. Does not check its subject. */
    private boolean isWanted(RecordBatch batch, int record) {
        return (keys == null || hasKey(batch, record))
                && (newest == null || newest.holds(batch, record))
                && (!hides || !batch.isHidden(record));
    }

    /** Checks the ends of the rows' items in a column. Must be called before they are used. */
    public void check(RecordBatch batch, RecordBatch.Binary column) {
        if (all || FEW * count > batch.last() - first) {
            batch.check(column);
            return;
        }
        int before = 0;
        for (int row = 0; row < count; row++) {
            before = batch.check(column, chosen[row], before);
        }
    }

    /** Returns the number of a row's record in the batch. */
    public int record(int row) {
        return all ? first + row : chosen[row];
    }

    public int count() {
        return count;
    }

    private boolean judgeSubjects(RecordBatch batch) {
        if (oneSubject != null) {
            onlySubject = batch.subjectEntry(oneSubject);
            if (onlySubject >= -1) {
                return onlySubject >= 0;
            }
        }
        batch.check(batch.subjects);
        batch.checkSubjectIds();
        int entries = batch.subjectCount();
        if (wantedSubjects.length < entries) {
            wantedSubjects = new boolean[entries];
        }
        int wanted = 0;
        for (int i = 0; i < entries; i++) {
            wantedSubjects[i] = isWanted(batch.bytes(),
                    batch.start(batch.subjects, i), batch.size(batch.subjects, i));
            if (wantedSubjects[i]) {
                onlySubject = i;
                wanted++;
            }
        }
        if (wanted != 1) {
            onlySubject = -1;
        }
        return wanted > 0;
    }

    private boolean isWanted(byte[] bytes, int at, int size) {
        return (subjects == null || subjects.holds(bytes, at, size))
                && (pattern == null || Subjects.matches(pattern, bytes, at, at + size));
    }

    private boolean hasKey(RecordBatch batch, int record) {
        if (batch.isNull(batch.keys, record)) {
            return false;
        }
        return keys.holds(
                batch.bytes(), batch.start(batch.keys, record), batch.size(batch.keys, record));
    }
}
