package liftlog.files;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import liftlog.records.Bytes;
import liftlog.scan.Extent;

/**
 * Determines how the bytes of segments are distributed over the offsets. Reads only the necessary
 * entries of the indexes. A damaged index only makes the extents uneven.
 */
final class Measuring {
    private static final int MOST_EXTENTS = 4096;
    private static final long LEAST_STEP = 64 * 1024;
    private static final int ENTRY = 16;

    private Measuring() {}

    /**
     * Returns extents of about {@code stepBytes} that cover the offsets of the segments without
     * gaps.
     */
    static List<Extent> measure(
            FileStore store, String directory, Manifest manifest, List<Manifest.Segment> segments,
            long stepBytes) {
        long total = segments.stream().mapToLong(Manifest.Segment::sizeBytes).sum();
        long step = Math.max(stepBytes, Math.max(LEAST_STEP, total / (MOST_EXTENTS / 2) + 1));
        List<Extent> found = new ArrayList<>();
        for (Manifest.Segment segment : segments) {
            SegmentIndex.Entry before = new SegmentIndex.Entry(segment.baseOffset(), 0);
            for (SegmentIndex.Entry place : places(
                    store, directory, manifest, segment, step)) {
                if (place.offset() > before.offset() && place.position() >= before.position()) {
                    add(found, step, new Extent(before.offset(), place.offset(),
                            place.position() - before.position()));
                    before = place;
                }
            }
        }
        return found;
    }

    /** Joins small neighbouring extents, because a stream can have thousands of small segments. */
    private static void add(List<Extent> found, long step, Extent extent) {
        Extent last = found.isEmpty() ? null : found.get(found.size() - 1);
        if (last != null
                && last.next() == extent.first()
                && last.sizeBytes() + extent.sizeBytes() <= step) {
            found.set(found.size() - 1, new Extent(
                    last.first(), extent.next(), last.sizeBytes() + extent.sizeBytes()));
        } else {
            found.add(extent);
        }
    }

    private static List<SegmentIndex.Entry> places(
            FileStore store, String directory, Manifest manifest, Manifest.Segment segment,
            long step) {
        List<SegmentIndex.Entry> found = new ArrayList<>();
        String path = SegmentIndex.indexPath(directory + "/" + segment.file());
        if (segment.sizeBytes() > step) {
            try (FileStore.Opened file = store.open(path)) {
                long count = SegmentIndex.count(file, segment, manifest.incarnation());
                for (long at = step; at < segment.sizeBytes(); at += step) {
                    SegmentIndex.Entry place = floor(file, count, segment.baseOffset(), at);
                    if (place.offset() < segment.nextOffset()) {
                        found.add(place);
                    }
                }
            } catch (IOException error) {
                found.clear(); // the index only repeats content of the segment
            }
        }
        found.add(new SegmentIndex.Entry(segment.nextOffset(), segment.sizeBytes()));
        return found;
    }

    /** Returns the last entry of the file at or before a position. */
    private static SegmentIndex.Entry floor(
            FileStore.Opened file, long count, long baseOffset, long position) throws IOException {
        byte[] raw = new byte[8];
        SegmentIndex.Entry best = new SegmentIndex.Entry(baseOffset, 0);
        long low = 0;
        long high = count;
        while (low < high) {
            long middle = (low + high) >>> 1;
            int length = file.read(middle * ENTRY, raw, 0, raw.length);
            long at = length < raw.length ? 0 : Bytes.u32(raw, 4);
            if (at <= position) {
                best = new SegmentIndex.Entry(
                        baseOffset + (length < raw.length ? 0 : Bytes.u32(raw, 0)), at);
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        return best;
    }
}
