package liftlog.files;

import java.io.IOException;
import java.util.function.Predicate;
import liftlog.records.BatchHeader;
import liftlog.records.CorruptBatch;
import liftlog.records.Epochs;
import liftlog.records.Place;
import liftlog.records.RecordBatch;

/**
 * The good batches of a stretch of a segment, one after the other. It passes over damage; the
 * caller sees which offsets are missing.
 */
final class SegmentWalk {
    static final byte[] NO_WINDOW = {};

    private static final int PASSING = 4 << 10;

    private final FileStore.Opened file;
    private final SegmentIndex index;
    private final SegmentIndex.Entry end;
    private final Place place;
    private long position;
    private byte[] window;
    private long windowStart;
    private int windowLength;
    private boolean isPassing; // the batch before was not wanted: perhaps the next one is not

    /** {@code end} is where the stretch ends, and the offset at which the log continues there. */
    SegmentWalk(FileStore.Opened file, SegmentIndex index, SegmentIndex.Entry start,
            SegmentIndex.Entry end, Epochs epochs, byte[] window) {
        this.file = file;
        this.index = index;
        this.end = end;
        this.place = new Place(start.offset(), end.offset(), epochs);
        this.position = start.position();
        this.window = window.length < file.bestRead() ? new byte[file.bestRead()] : window;
    }

    /** The buffer, which can have grown: for the walk over the next stretch. */
    byte[] window() {
        return window;
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
                        && new Resync(file).leads(position, header, border())) {
                    place.goOnAt(header.baseOffset()); // the batches before it are gone
                }
                if (!place.holds(header)) {
                    readable = null;
                }
            }
            isPassing = readable != null && !wanted.test(readable);
            if (isPassing || readable != null && isShown(into, readable)) {
                position += readable.length();
                place.passBy(readable);
                return readable;
            }
            passDamage(readable);
        }
        return null;
    }

    private BatchHeader headerHere() throws IOException {
        int length = view(BatchHeader.SIZE);
        int at = (int) (position - windowStart);
        try {
            return BatchHeader.parse(window, at, at + length);
        } catch (CorruptBatch error) {
            return null;
        }
    }

    private boolean isShown(RecordBatch into, BatchHeader header) throws IOException {
        int length = view(header.length());
        int at = (int) (position - windowStart);
        try {
            header.checkBody(window, at, at + length);
            into.load(window, at, header);
            return true;
        } catch (CorruptBatch error) {
            return false;
        }
    }

    private void passDamage(BatchHeader readable) throws IOException {
        SegmentIndex.Entry border = border();
        SegmentIndex.Entry found = new Resync(file)
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

    /** Reads so much at the position into the window, unless it is there. Fewer bytes at the end. */
    private int view(int length) throws IOException {
        int wanted = (int) Math.min(length, end.position() - position);
        long inside = position - windowStart;
        if (inside >= 0 && inside + wanted <= windowLength) {
            return wanted;
        }
        int kept = inside >= 0 && inside < windowLength ? windowLength - (int) inside : 0;
        byte[] from = window;
        if (wanted > window.length) {
            window = new byte[wanted + wanted / 4];
        }
        System.arraycopy(from, kept == 0 ? 0 : (int) inside, window, 0, kept);
        // Of batches that are not wanted, only the headers are read.
        int most = isPassing ? Math.max(wanted, PASSING) : window.length;
        int room = (int) Math.max(kept, Math.min(most, end.position() - position));
        windowStart = position;
        windowLength = kept + Disk.read(file, position + kept, window, kept, room - kept);
        return Math.min(wanted, windowLength);
    }
}
