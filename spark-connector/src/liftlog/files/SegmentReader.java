package liftlog.files;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.function.Predicate;
import liftlog.records.BatchHeader;
import liftlog.records.CorruptBatch;
import liftlog.records.RecordBatch;
import liftlog.scan.Extent;
import liftlog.scan.Losses;
import liftlog.scan.Rows;

/**
 * Reads the batches of one segment in a range of offsets, and reports missing records between them.
 * Batches cover the offsets without gaps. So every gap is a loss: damaged bytes, or records that
 * were lost before they were written. Bytes that the manifest lists as quarantined are not read.
 */
final class SegmentReader implements AutoCloseable {
    private record Stretch(SegmentIndex.Entry start, SegmentIndex.Entry end) {}

    private final Manifest.Segment segment;
    private final FileStore.Opened file;
    private final SegmentIndex index;
    private final List<Stretch> stretches = new ArrayList<>();
    private final Window window;
    private PartReading parts;
    private SubjectRuns runs; // null if the batches are read one after the other
    private boolean isIndexBad;
    private Manifest manifest;
    private ErasedSet erased; // null if no record is erased
    private Losses losses;
    private Predicate<BatchHeader> wanted;
    private SegmentWalk walk;
    private int following;
    private long reached;
    private long before; // the first wanted offset of the batch that is shown
    private long end;

    /** Throws FileNotFoundException. */
    SegmentReader(FileStore store, String directory, Manifest manifest, Manifest.Segment segment,
            Window window) throws IOException {
        this.segment = segment;
        this.window = window;
        String path = directory + "/" + segment.file();
        file = store.open(path);
        window.open(file);
        index = SegmentIndex.read(store, path, segment, manifest.incarnation());
    }

    Manifest.Segment segment() {
        return segment;
    }

    SegmentIndex index() {
        return index;
    }

    /** Reads only parts of batches from now on, and verifies them with these checksums. */
    void readParts(BatchParts checks, PartReading.Need need) {
        parts = new PartReading(checks, need, file.worthReading());
    }

    /**
     * Shows only the records of a subject from now on, by the runs with records in one of these
     * pieces, if this takes less time than reading the pieces. Returns true if it does. Otherwise
     * the index is closed.
     */
    boolean readRuns(SubjectIndex entries, SubjectIndex.Runs ofSubject, FileStore.Opened indexFile,
            List<Extent> pieces, boolean withValues) throws IOException {
        runs = new SubjectRuns(entries, ofSubject, indexFile, file, segment.baseOffset(), pieces,
                withValues);
        double offsets = 0;
        for (Extent one : pieces) {
            offsets += Math.max(0, Math.min(one.next(), segment.nextOffset())
                    - Math.max(one.first(), segment.baseOffset()));
        }
        double part = offsets / (segment.nextOffset() - segment.baseOffset());
        if (!runs.isWorthIt((long) (part * segment.sizeBytes()))) {
            closeRuns();
        }
        return runs != null;
    }

    /**
     * Returns true if a run did not match the index. All records before {@code reached} were shown.
     */
    boolean isIndexBad() {
        return isIndexBad;
    }

    long reached() {
        return reached;
    }

    /**
     * Begins at an offset. Batches that are not wanted are skipped, and are not reported as a gap.
     * Records in {@code gone} are hidden; null means that no record is erased.
     */
    void seek(Manifest listed, ErasedSet gone, long first, long stop, Losses about,
            Predicate<BatchHeader> keep) {
        manifest = listed;
        erased = gone;
        losses = about;
        wanted = header -> header.nextOffset() > reached && keep.test(header);
        seekOn(first, stop);
    }

    /**
     * Begins at a later offset, with the same conditions. The offsets before it are not reported as
     * a gap.
     */
    void seekOn(long first, long stop) {
        stretches.clear();
        following = 0;
        walk = null;
        reached = Math.max(first, segment.baseOffset());
        end = stop;
        SegmentIndex.Entry from = index.floor(reached);
        SegmentIndex.Entry whole =
                new SegmentIndex.Entry(segment.nextOffset(), segment.sizeBytes());
        List<Manifest.Quarantined> bad = new ArrayList<>();
        for (Manifest.Quarantined one : manifest.quarantined()) {
            if (one.segment().equals(segment.file())
                    && one.end() > Math.max(from.position(), one.position())) {
                bad.add(one);
            }
        }
        bad.sort(Comparator.comparingLong(Manifest.Quarantined::position));
        for (Manifest.Quarantined one : bad) {
            if (one.position() > from.position() && one.first() > from.offset()) {
                stretches.add(new Stretch(from, new SegmentIndex.Entry(one.first(), one.position())));
            }
            from = new SegmentIndex.Entry(one.next(), one.end());
        }
        SegmentIndex.Entry until = bad.isEmpty() && end < whole.offset() ? index.from(end) : null;
        stretches.add(new Stretch(from, until == null ? whole : until));
    }

    /** Shows the next batch with records in the range. Returns false at the end of the range. */
    boolean next(RecordBatch into) throws IOException {
        if (runs != null) {
            return nextOfRuns(into);
        }
        while (reached < Math.min(end, segment.nextOffset())) {
            if (walk == null) {
                if (following == stretches.size()) {
                    long last = Math.min(end, segment.nextOffset());
                    long from = reached;
                    reached = last;
                    reportGap(manifest, from, last, losses);
                    return false;
                }
                Stretch stretch = stretches.get(following++);
                walk = new SegmentWalk(
                        window, index, stretch.start(), stretch.end(), manifest.epochs(), parts);
            }
            BatchHeader header = walk.next(into, wanted);
            if (header == null) {
                walk = null;
            } else if (header.nextOffset() > reached && isShown(into, header)) {
                return true;
            }
        }
        return false;
    }

    private boolean nextOfRuns(RecordBatch into) throws IOException {
        try {
            while (runs.next(into)) {
                boolean isWanted = wanted.test(into.header());
                long from = reached;
                reached = Math.max(from, Math.min(into.header().nextOffset(), end));
                into.trim(from, end);
                if (isWanted && into.first() < into.last()) {
                    hideErased(into);
                    return true;
                }
            }
            reached = Math.min(end, segment.nextOffset());
        } catch (CorruptBatch error) {
            isIndexBad = true;
        }
        return false;
    }

    /** Like {@code BatchSource.complete}. */
    boolean complete(RecordBatch shown, Rows rows) throws IOException {
        boolean isComplete = runs != null || walk.complete(shown, rows);
        if (!isComplete) {
            reached = before;
        }
        return isComplete;
    }

    private boolean isShown(RecordBatch into, BatchHeader header) {
        boolean isWanted = wanted.test(header);
        long from = reached;
        before = Math.max(reached, Math.min(header.baseOffset(), end));
        reached = Math.min(header.nextOffset(), end);
        reportGap(manifest, from, before, losses);
        if (!isWanted || header.baseOffset() >= end) {
            return false;
        }
        hideErased(into);
        into.trim(before, end);
        return into.first() < into.last();
    }

    private void hideErased(RecordBatch shown) {
        if (erased != null) {
            erased.hideIn(shown);
        }
    }

    /** Reports [first, next) as lost, except for offsets that never had an acked record. */
    static void reportGap(Manifest manifest, long first, long next, Losses losses) {
        List<Manifest.Quarantined> skipped = new ArrayList<>();
        for (Manifest.Quarantined one : manifest.quarantined()) {
            if (!one.isLoss()) {
                skipped.add(one);
            }
        }
        skipped.sort(Comparator.comparingLong(Manifest.Quarantined::first));
        long at = first;
        for (Manifest.Quarantined one : skipped) {
            if (at < Math.min(one.first(), next)) {
                losses.damaged(at, Math.min(one.first(), next));
            }
            at = Math.max(at, one.next());
        }
        if (at < next) {
            losses.damaged(at, next);
        }
    }

    private void closeRuns() {
        if (runs != null) {
            runs.close();
            runs = null;
        }
    }

    @Override
    public void close() {
        try {
            closeRuns();
        } finally {
            close(file);
        }
    }

    static void close(FileStore.Opened file) {
        try {
            file.close();
        } catch (IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
    }
}
