package liftlog.files;

import java.io.IOException;
import java.util.HashSet;
import java.util.Set;
import liftlog.records.BatchHeader;
import liftlog.records.Bytes;
import liftlog.records.CorruptBatch;
import liftlog.records.Failure;

/**
 * Finds the place where good batches continue after damage.
 *
 * <p>The value of a record can hold the bytes of whole batches, so a batch that looks good may be
 * inside a value. There are two proofs that it is not. If the header of the damaged batch is
 * readable, its length gives the start of the next batch. Otherwise a chain of headers must lead to
 * a known border, and reach the expected offset there.
 */
final class Resync {
    private static final int SEARCH = 1 << 20;
    private static final int HEADER_WINDOW = 1 << 16;
    private static final int ALIGNMENT = 8;
    private static final int LEAST_RECORD = 4;
    private static final long MOST_CHECKED = 256L << 20;
    private static final int MOST_BATCH = 128 << 20;

    private final FileStore.Opened file;
    private final byte[] window = new byte[HEADER_WINDOW];
    private long windowStart = -1;
    private int windowLength;

    Resync(FileStore.Opened file) {
        this.file = file;
    }

    /**
     * Returns the first good batch in (position, border); null if no batch is proven to be good.
     * The batch of {@code offset} at {@code position} is bad; {@code bad} is its header if it is
     * readable.
     */
    SegmentIndex.Entry find(
            long position, SegmentIndex.Entry border, long offset, long epoch, BatchHeader bad)
            throws IOException {
        long start = position + ALIGNMENT;
        if (bad != null && bad.baseOffset() == offset) {
            start = position + bad.length();
            if (start >= border.position()) {
                return null;
            }
            BatchHeader following = header(start);
            if (following != null
                    && following.baseOffset() == bad.nextOffset()
                    && following.leaderEpoch() >= bad.leaderEpoch()) {
                return new SegmentIndex.Entry(following.baseOffset(), start);
            }
        }
        return search(start, position, border, offset, epoch);
    }

    /** Returns true if a chain of headers leads from this batch to the border. */
    boolean leads(long position, BatchHeader header, SegmentIndex.Entry border)
            throws IOException {
        return leads(position, header, border, new HashSet<>());
    }

    private SegmentIndex.Entry search(
            long start, long position, SegmentIndex.Entry border, long offset, long epoch)
            throws IOException {
        long budget = MOST_CHECKED;
        Set<Long> broken = new HashSet<>();
        byte[] piece = new byte[SEARCH + ALIGNMENT];
        for (long at = start; at < border.position(); at += SEARCH) {
            int wanted = (int) Math.min(SEARCH, border.position() - at);
            int length = Disk.read(file, at, piece, 0, Math.min(piece.length, wanted + 4));
            int first = (int) (-at & (ALIGNMENT - 1));
            for (int i = first; i + 4 <= length && i < wanted; i += ALIGNMENT) {
                if (Bytes.i32(piece, i) != BatchHeader.MAGIC) {
                    continue;
                }
                BatchHeader found = header(at + i);
                if (found == null
                        || found.baseOffset() <= offset
                        || found.baseOffset() > offset + (at + i - position) / LEAST_RECORD
                        || found.leaderEpoch() < epoch
                        || found.length() > MOST_BATCH) {
                    continue;
                }
                budget -= found.length();
                if (budget < 0) {
                    return null;
                }
                if (isWhole(at + i, found) && leads(at + i, found, border, broken)) {
                    return new SegmentIndex.Entry(found.baseOffset(), at + i);
                }
            }
        }
        return null;
    }

    private boolean leads(
            long position, BatchHeader header, SegmentIndex.Entry border, Set<Long> broken)
            throws IOException {
        Set<Long> passed = new HashSet<>();
        BatchHeader current = header;
        long at = position;
        while (current != null && !broken.contains(at)) {
            passed.add(at);
            at += current.length();
            if (at >= border.position()) {
                return current.nextOffset() == border.offset();
            }
            BatchHeader following = header(at);
            boolean continues = following != null
                    && following.baseOffset() == current.nextOffset()
                    && following.leaderEpoch() >= current.leaderEpoch();
            current = continues ? following : null;
        }
        broken.addAll(passed);
        return false;
    }

    private boolean isWhole(long position, BatchHeader header) throws IOException {
        byte[] bytes = new byte[header.length()];
        int length = Disk.read(file, position, bytes, 0, bytes.length);
        try {
            header.checkBody(bytes, 0, length);
            return true;
        } catch (CorruptBatch error) {
            return false;
        }
    }

    private BatchHeader header(long position) throws IOException {
        long inside = position - windowStart;
        if (windowStart < 0 || inside < 0 || inside + BatchHeader.SIZE > windowLength) {
            windowStart = position;
            inside = 0;
            windowLength = Disk.read(file, position, window, 0, window.length);
        }
        try {
            return BatchHeader.parse(window, (int) inside, windowLength);
        } catch (CorruptBatch error) {
            return null;
        } catch (Failure error) {
            return null; // the format is not known, so this may be no batch of the log
        }
    }
}
