package liftlog.files;

import java.io.IOException;
import java.util.Set;
import liftlog.records.BatchHeader;
import liftlog.records.Bytes;
import liftlog.records.CorruptBatch;
import liftlog.records.RecordBatch;
import liftlog.scan.Columns;
import liftlog.scan.Rows;

/**
 * Reads only the necessary parts of the batches of one segment: headers, heads, or heads and the
 * values of some records. It checks the bytes that it reads. It refuses a batch in three cases: the
 * batch has no checksums of parts, too much of it is wanted, or a part is damaged. The caller then
 * reads the whole batch.
 */
final class PartReading {
    /** The parts of a batch that a read needs at least. */
    enum Need {
        HEADERS, HEADS, SOME_VALUES, ALL;

        /** {@code selects} is true if some records may not become rows. */
        static Need of(Set<String> columns, boolean selects) {
            if (columns.contains(Columns.VALUE)) {
                return selects ? SOME_VALUES : ALL;
            }
            return Set.of(Columns.OFFSET, Columns.TIMESTAMP).containsAll(columns) ? HEADERS : HEADS;
        }
    }

    private static final int DENSE = 16; // number of batches to read whole after one
    private static final int CHECKING = 512; // bytes read in the time of one checksum
    private static final int OWN_COLUMNS =
            BatchHeader.OFFSET_DELTAS | BatchHeader.TIMESTAMP_DELTAS;

    private final BatchParts parts;
    private final int worthReading;
    private Need need;
    private int dense;
    private int shown = -1; // the batch whose parts are shown
    private long shownAt;
    private long refused = -1; // the position of a batch that must be read whole

    PartReading(BatchParts parts, Need need, int worthReading) {
        this.parts = parts;
        this.need = need;
        this.worthReading = worthReading;
    }

    /**
     * Returns the number of bytes to read from here on. The read ends after the last part that is
     * near enough to be read together. Examines all batches up to there, so call it only before a
     * read.
     */
    int ahead(long position, int most) {
        int i = dense > 0 ? -1 : parts.at(position);
        if (i < 0) {
            return most;
        }
        long end = position;
        for (; i < parts.count(); i++) {
            long from = parts.position(i);
            long to = from + (need == Need.HEADERS ? BatchHeader.SIZE : parts.headBytes(i));
            if (to == from) { // to be read whole
                to = i + 1 < parts.count() ? parts.position(i + 1) : position + most;
            }
            if (from - end > worthReading || to - position > most) {
                break;
            }
            end = to;
        }
        return (int) (end - position);
    }

    /**
     * Shows the needed parts of the batch at a position, whose header is in the window. Returns
     * false if the batch is refused.
     */
    boolean isShown(Window window, long position, RecordBatch into, BatchHeader header)
            throws IOException {
        shown = -1;
        if (dense > 0) {
            dense--;
            return false;
        }
        if (need == Need.HEADERS) {
            if ((header.attributes() & OWN_COLUMNS) == 0) {
                into.loadHeader(header);
                return true;
            }
            need = Need.HEADS; // the next batches are probably alike
        }
        int i = position == refused ? -1 : parts.at(position);
        int size = i < 0 ? 0 : parts.headBytes(i);
        if (size < BatchHeader.SIZE || size > header.length() || header.codec() != 0) {
            return false;
        }
        int wanted = need == Need.SOME_VALUES && header.length() - size <= worthReading
                ? header.length()
                : size;
        int most = window.holds(position, wanted) ? wanted : ahead(position, window.size());
        if (window.view(position, wanted, most, position + Math.max(wanted, most)) < wanted) {
            return false;
        }
        if (need == Need.SOME_VALUES) {
            window.makeRoom(position, header.length());
        }
        int at = window.at(position);
        int columns = at + BatchHeader.SIZE;
        if (Bytes.crc32c(window.bytes(), columns, size - BatchHeader.SIZE) != parts.headCheck(i)) {
            return false;
        }
        try {
            into.loadHead(window.bytes(), at, header, size);
        } catch (CorruptBatch error) {
            return false;
        }
        shown = i;
        shownAt = position;
        return true;
    }

    /** Reads and checks the values of these rows. Returns false if the batch must be read whole. */
    boolean complete(Window window, RecordBatch batch, Rows rows) throws IOException {
        if (shown < 0 || need != Need.SOME_VALUES) {
            return true;
        }
        boolean isGood = parts.hasChecks(shown, batch.header().recordCount());
        if (isGood && !areFew(window, batch, rows)) {
            dense = DENSE;
            isGood = false;
        }
        if (isGood && readValues(window, batch, rows)) {
            return true;
        }
        refused = shownAt;
        return false;
    }

    /**
     * Returns true if reading only these values takes less time than reading the rest of the batch.
     */
    private boolean areFew(Window window, RecordBatch batch, Rows rows) {
        rows.check(batch, batch.values);
        boolean isHere = window.holds(shownAt, batch.header().length());
        int apart = isHere ? 0 : worthReading;
        long most = batch.header().length() - parts.headBytes(shown);
        long cost = 0;
        int reached = Integer.MIN_VALUE / 2;
        for (int row = 0; row < rows.count() && cost < most; row++) {
            int record = rows.record(row);
            int from = batch.start(batch.values, record);
            cost += CHECKING + Math.min(from - reached, apart);
            reached = from + batch.size(batch.values, record);
            cost += reached - from;
        }
        return cost < most;
    }

    private boolean readValues(Window window, RecordBatch batch, Rows rows) throws IOException {
        long base = shownAt - window.at(shownAt);
        int row = 0;
        while (row < rows.count()) {
            int first = row;
            int from = batch.start(batch.values, rows.record(row));
            int to = from;
            while (row < rows.count()
                    && batch.start(batch.values, rows.record(row)) - to <= worthReading) {
                int record = rows.record(row++);
                to = batch.start(batch.values, record) + batch.size(batch.values, record);
            }
            if (!window.fill(base + from, to - from)) {
                return false;
            }
            for (; first < row; first++) {
                int record = rows.record(first);
                int check = Bytes.crc32c(window.bytes(), batch.start(batch.values, record),
                        batch.size(batch.values, record));
                if (check != parts.check(shown, record)) {
                    return false;
                }
            }
        }
        return true;
    }
}
