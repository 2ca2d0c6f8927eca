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
 * The good batches of a stretch of a segment, one after the other. It passes over damage; the
 * caller sees which offsets are missing. With {@code parts} it reads of a batch what is needed, or
 * the whole batch if that fails.
 */
final class SegmentWalk {
    private static final int PASSING = 4 << 10;

    private final Window window;
    private final SegmentIndex index;
    private final SegmentIndex.Entry end;
    private final PartReading parts; // null: there are no checksums of parts
    private Place place;
    private Place before; // where the batch belonged that was shown last
    private long position;
    private boolean isPassing; // the batch before was not wanted: perhaps the next one is not

    /** {@code end} is where the stretch ends, and the offset at which the log continues there. */
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
     * Shows the next good batch in {@code into} and returns its header; null at the end. The body
     * of a batch that is not wanted is neither checked nor shown.
     */
    BatchHeader next(RecordBatch into, Predicate<BatchHeader> wanted) throws IOException {
        while (position < end.position()) {
            BatchHeader header = headerHere();
            BatchHeader readable = header;
            if (header != null && !place.holds(header)) {
                if (header.baseOffset() > place.offset()
                        && new Resync(window.file()).leads(position, header, border())) {
                    place.goOnAt(header.baseOffset()); // the batches before it are gone
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

    /** Makes the values of these rows readable; false: {@code next} shows the batch again. */
    boolean complete(RecordBatch shown, Rows rows) throws IOException {
        if (parts == null || parts.complete(window, shown, rows)) {
            return true;
        }
        position -= shown.header().length();
        place = before;
        return false;
    }

    private BatchHeader headerHere() throws IOException {
        // Of batches that are not wanted, only the headers are read.
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

    /** The next place at which a batch begins for sure. */
    private SegmentIndex.Entry border() {
        SegmentIndex.Entry entry = index.after(position);
        boolean useless = entry == null
                || entry.position() >= end.position()
                || entry.offset() <= place.offset();
        return useless ? end : entry;
    }
}
