package liftlog.files;

import java.io.IOException;
import java.util.function.Predicate;
import liftlog.records.BatchHeader;
import liftlog.records.CorruptBatch;
import liftlog.records.Epochs;
import liftlog.records.Place;
import liftlog.records.RecordBatch;
import liftlog.scan.Rows;

/**
 * Walks the good batches of a stretch of a segment, one after the other. It skips damage; the
 * caller finds the missing offsets. With {@code parts} it reads only the needed parts of a batch,
 * or the whole batch if this fails.
 */
final class SegmentWalk {
    private static final int PASSING = 4 << 10;

    private final Window window;
    private final SegmentIndex index;
    private final SegmentIndex.Entry end;
    private final PartReading parts; // null if there are no checksums of parts
    private Place place;
    private Place before; // the place of the batch that was shown last
    private long position;
    private boolean isPassing; // the last batch was not wanted, so the next may not be either

    /** {@code end} is the end of the stretch, and the offset at which the log continues there. */
    SegmentWalk(Window window, SegmentIndex index, SegmentIndex.Entry start,
            SegmentIndex.Entry end, Epochs epochs, PartReading parts) {
        this.window = window;
        this.index = index;
        this.end = end;
        this.parts = parts;
        this.place = new Place(start.offset(), end.offset(), epochs);
        this.position = start.position();
    }

    /**
     * Shows the next good batch in {@code into} and returns its header; null at the end. If a batch
     * is not wanted, its body is neither checked nor shown.
     */
    BatchHeader next(RecordBatch into, Predicate<BatchHeader> wanted) throws IOException {
        while (position < end.position()) {
            BatchHeader header = headerHere();
            BatchHeader readable = header;
            if (header != null && !place.holds(header)) {
                if (header.baseOffset() > place.offset()
                        && new Resync(window.file()).leads(position, header, border())) {
                    place.goOnAt(header.baseOffset()); // the batches before it are lost
                }
                if (!place.holds(header)) {
                    readable = null;
                }
            }
            isPassing = readable != null && !wanted.test(readable);
            if (isPassing || readable != null && isShown(into, readable)) {
                position += readable.length();
                before = parts == null ? null : place.copy();
                place.passBy(readable);
                return readable;
            }
            passDamage(readable);
        }
        return null;
    }

    /**
     * Makes the values of these rows readable. If it returns false, {@code next} shows the batch
     * again.
     */
    boolean complete(RecordBatch shown, Rows rows) throws IOException {
        if (parts == null || parts.complete(window, shown, rows)) {
            return true;
        }
        position -= shown.header().length();
        place = before;
        return false;
    }

    private BatchHeader headerHere() throws IOException {
        // If a batch is not wanted, only its header is read.
        int most = isPassing ? PASSING
                : parts == null || window.holds(position, BatchHeader.SIZE) ? window.size()
                : parts.ahead(position, window.size());
        int length = window.view(position, BatchHeader.SIZE, most, end.position());
        int at = window.at(position);
        try {
            return BatchHeader.parse(window.bytes(), at, at + length);
        } catch (CorruptBatch error) {
            return null;
        }
    }

    private boolean isShown(RecordBatch into, BatchHeader header) throws IOException {
        if (parts != null && parts.isShown(window, position, into, header)) {
            return true;
        }
        int length = window.view(position, header.length(), window.size(), end.position());
        int at = window.at(position);
        try {
            header.checkBody(window.bytes(), at, at + length);
            into.load(window.bytes(), at, header);
            return true;
        } catch (CorruptBatch error) {
            return false;
        }
    }

    private void passDamage(BatchHeader readable) throws IOException {
        SegmentIndex.Entry border = border();
        SegmentIndex.Entry found = new Resync(window.file())
                .find(position, border, place.offset(), place.sureEpoch(), readable);
        SegmentIndex.Entry following = found == null ? border : found;
        position = following.position();
        place.goOnAt(following.offset());
    }

    /** Returns the next place at which a batch certainly begins. */
    private SegmentIndex.Entry border() {
        SegmentIndex.Entry entry = index.after(position);
        boolean useless = entry == null
                || entry.position() >= end.position()
                || entry.offset() <= place.offset();
        return useless ? end : entry;
    }
}
