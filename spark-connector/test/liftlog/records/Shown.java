package liftlog.records;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import liftlog.Golden;

/** The records that a batch shows, with all columns checked. */
final class Shown {
    final List<Long> offsets = new ArrayList<>();
    final List<Long> timestampsNs = new ArrayList<>();
    final List<String> subjects = new ArrayList<>(); // these three as hexadecimal digits
    final List<String> keys = new ArrayList<>();
    final List<String> headers = new ArrayList<>();
    final List<String> values = new ArrayList<>();

    /** Throws CorruptBatch or Failure, like a reader that uses all columns. */
    static Shown of(byte[] stored) throws CorruptBatch {
        BatchHeader header = BatchHeader.parse(stored, 0, stored.length);
        header.checkBody(stored, 0, stored.length);
        try (RecordBatch batch = new RecordBatch()) {
            batch.load(stored, 0, header);
            return of(batch);
        }
    }

    static Shown of(RecordBatch batch) {
        batch.check(batch.subjects);
        batch.checkSubjectIds();
        batch.check(batch.values);
        if (batch.keys.isPresent()) {
            batch.check(batch.keys);
        }
        if (batch.headers.isPresent()) {
            batch.check(batch.headers);
        }
        Shown found = new Shown();
        for (int row = batch.first(); row < batch.last(); row++) {
            found.offsets.add(batch.offset(row));
            found.timestampsNs.add(batch.timestampNs(row));
            int subject = batch.subjectId(row);
            found.subjects.add(hex(batch, batch.subjects, subject));
            found.keys.add(batch.keys.isPresent() ? hex(batch, batch.keys, row) : null);
            found.headers.add(batch.headers.isPresent() ? hex(batch, batch.headers, row) : "");
            found.values.add(hex(batch, batch.values, row));
        }
        return found;
    }

    private static String hex(RecordBatch batch, RecordBatch.Binary column, int item) {
        if (batch.isNull(column, item)) {
            return null;
        }
        int at = batch.start(column, item);
        return Golden.hex(Arrays.copyOfRange(batch.bytes(), at, at + batch.size(column, item)));
    }


    List<List<?>> columns() {
        return List.of(offsets, timestampsNs, subjects, keys, headers, values);
    }
}
