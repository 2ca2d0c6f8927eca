package liftlog.scan;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Set;
import liftlog.records.RecordBatch;

/**
 * Which records of a batch become rows: those on wanted subjects, with the wanted key, and with
 * {@code compact} only the newest of each key.
 */
public final class Rows {
    private final byte[][] pattern;
    private final byte[] subject;
    private final byte[] key;
    private NewestKeys newest;
    private boolean[] wantedSubjects = new boolean[0];
    private int[] chosen = new int[0];
    private int first;
    private int count;
    private boolean all;

    public Rows(ScanOptions options) {
        String one = options.narrowing().subject();
        pattern = options.subject() == null ? null : Subjects.tokens(options.subject());
        subject = one == null ? null : one.getBytes(StandardCharsets.UTF_8);
        key = options.narrowing().key();
    }

    /** The columns that decide which records become rows, with those of {@code compact} or without. */
    public Set<String> columns(boolean compact) {
        Set<String> found = new HashSet<>(Set.of(Columns.OFFSET));
        if (pattern != null || subject != null) {
            found.add(Columns.SUBJECT);
        }
        if (key != null || compact) {
            found.add(Columns.KEY);
        }
        return found;
    }

    /** Whether perhaps not all records become rows. */
    public boolean selects() {
        return pattern != null || subject != null || key != null || newest != null;
    }

    /** From now on only records that are the newest of their key. */
    public void only(NewestKeys found) {
        newest = found;
    }

    /** Chooses among the records that the batch shows; returns how many become rows. */
    public int select(RecordBatch batch) {
        first = batch.first();
        count = batch.last() - first;
        boolean bySubject = pattern != null || subject != null;
        all = !bySubject && key == null && newest == null;
        if (all || count == 0) {
            return count;
        }
        if (bySubject && !judgeSubjects(batch)) {
            count = 0;
            return 0;
        }
        if (key != null || newest != null) {
            if (key != null && !batch.keys.isPresent()) {
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
        int found = 0;
        for (int record = first; record < batch.last(); record++) {
            if ((!bySubject || wantedSubjects[batch.subjectId(record)])
                    && (key == null || hasKey(batch, record))
                    && (newest == null || newest.holds(batch, record))) {
                chosen[found++] = record;
            }
        }
        count = found;
        return count;
    }

    /** The record of the batch that a row is. */
    public int record(int row) {
        return all ? first + row : chosen[row];
    }

    public int count() {
        return count;
    }

    private boolean judgeSubjects(RecordBatch batch) {
        batch.check(batch.subjects);
        batch.checkSubjectIds();
        int entries = batch.subjectCount();
        if (wantedSubjects.length < entries) {
            wantedSubjects = new boolean[entries];
        }
        boolean some = false;
        for (int i = 0; i < entries; i++) {
            wantedSubjects[i] = isWanted(batch.bytes(),
                    batch.start(batch.subjects, i), batch.size(batch.subjects, i));
            some |= wantedSubjects[i];
        }
        return some;
    }

    private boolean isWanted(byte[] bytes, int at, int size) {
        return (subject == null || Arrays.equals(bytes, at, at + size, subject, 0, subject.length))
                && (pattern == null || Subjects.matches(pattern, bytes, at, at + size));
    }

    private boolean hasKey(RecordBatch batch, int record) {
        if (batch.isNull(batch.keys, record)) {
            return false;
        }
        int at = batch.start(batch.keys, record);
        int size = batch.size(batch.keys, record);
        return size == key.length
                && Arrays.equals(batch.bytes(), at, at + size, key, 0, key.length);
    }
}
