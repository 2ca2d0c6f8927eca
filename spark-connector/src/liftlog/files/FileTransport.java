package liftlog.files;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import liftlog.records.BatchHeader;
import liftlog.records.Failure;
import liftlog.records.RecordBatch;
import liftlog.scan.BatchSource;
import liftlog.scan.Extent;
import liftlog.scan.Losses;
import liftlog.scan.Narrowing;
import liftlog.scan.Rows;
import liftlog.scan.ScanRange;
import liftlog.scan.StreamState;
import liftlog.scan.Transport;

/**
 * Reads batches from segment files, in a stream's directory or in a copy of it. No daemon is
 * needed.
 *
 * <p>Only sealed segments are read. Each step loads the manifest again, so it finds the files by
 * which compaction has replaced other files.
 */
public final class FileTransport implements Transport {
    private final FileStore store;
    private final String directory;
    private final Manifest.Last last = new Manifest.Last();
    private final String stream;
    private final long notBeforeNs;
    private final long notAfterNs;
    private final byte[] subject; // the only wanted subject, or null
    private List<Manifest.Erased> erasedFiles = List.of();
    private ErasedSet erased; // the content of these files; null if there are none

    /**
     * Leaves out batches without a record of the time range [notBeforeNs, notAfterNs]. If
     * {@code wanted} allows only one subject, records on other subjects may be left out, too.
     */
    public FileTransport(FileStore store, String path, String stream, Narrowing wanted) {
        this.store = store;
        this.stream = stream;
        this.notBeforeNs = wanted.notBeforeNs();
        this.notAfterNs = wanted.notAfterNs();
        this.subject = wanted.subjects() == null ? null : wanted.subjects().only();
        this.directory = find(store, path, stream);
    }

    @Override
    public StreamState state() {
        Manifest manifest = manifest();
        List<Manifest.Segment> sealed = manifest.committed();
        long end = sealed.isEmpty()
                ? manifest.segments().get(0).baseOffset()
                : sealed.get(sealed.size() - 1).nextOffset();
        List<Extent> extents = new ArrayList<>();
        for (Manifest.Segment one : sealed) {
            extents.add(new Extent(one.baseOffset(), one.nextOffset(), one.sizeBytes()));
        }
        return new StreamState(stream, manifest.lineage(), manifest.leaderEpoch(),
                Math.min(manifest.logStartOffset(), end), end, extents);
    }

    @Override
    public long offsetAt(long timestampNs) {
        Look look = look(0, Long.MAX_VALUE);
        Manifest manifest = look.manifest();
        Losses skipped = new Losses(stream, false);
        for (Manifest.Segment segment : manifest.committed()) {
            if (segment.maxTimestampNs() < timestampNs) {
                continue;
            }
            try (SegmentReader reader = new SegmentReader(
                            store, directory, manifest, segment, new Window());
                    RecordBatch batch = new RecordBatch()) {
                long from = reader.index().floorTime(timestampNs).offset();
                reader.seek(manifest, look.erased(), Math.max(from, manifest.logStartOffset()),
                        segment.nextOffset(), skipped,
                        header -> header.maxTimestampNs() >= timestampNs);
                while (reader.next(batch)) {
                    for (int row = batch.first(); row < batch.last(); row++) {
                        // Columns contain whole microseconds, and so do the conditions that Spark
                        // passes.
                        if (batch.timestampNs(row) >= timestampNs && !batch.isHidden(row)) {
                            return batch.offset(row);
                        }
                    }
                }
            } catch (IOException error) {
                throw failed(error);
            }
        }
        return state().end();
    }

    @Override
    public void checkHistory(long offset, long leaderEpoch) {
        // The identity is the lineage, which changes when the log loses its end.
    }

    /**
     * Files cannot be protected. Throws an error if the stream has records, but none of them is in
     * a sealed segment.
     */
    @Override
    public StreamState hold(StreamState state, Long first) {
        Manifest manifest = manifest();
        if (!manifest.committed().isEmpty()) {
            return state;
        }
        List<Manifest.Segment> segments = manifest.segments();
        if (segments.size() > 1) {
            throw Failure.invalid(directory + " is one of several replicas, and of none of its"
                    + " segments it is known here that everything is committed",
                    "use server=, or wait until the next segment is full or old enough");
        }
        long size = sizeOf(directory + "/" + segments.get(segments.size() - 1).file());
        if (size > 0) {
            throw Failure.invalid(directory + " has no sealed segment: its only one, of " + size
                    + " bytes, is still being written, and is not read from files",
                    "use server=, or wait until the segment is full or old enough (the setting"
                    + " segment)");
        }
        return state;
    }

    @Override
    public StreamState measure(StreamState state, long first, long end, long stepBytes) {
        List<Manifest.Segment> segments = new ArrayList<>();
        Manifest manifest = manifest();
        for (Manifest.Segment one : manifest.committed()) {
            if (one.nextOffset() > first && one.baseOffset() < end) {
                segments.add(one);
            }
        }
        return state.withExtents(
                Measuring.measure(store, directory, manifest, segments, stepBytes));
    }

    @Override
    public StreamState find(
            StreamState state, long first, long end, long stepBytes, Narrowing wanted,
            boolean inParts) {
        Manifest manifest = manifest();
        List<Extent> found = new ArrayList<>();
        for (Manifest.Segment one : manifest.committed()) {
            if (one.nextOffset() <= first || one.baseOffset() >= end) {
                continue;
            }
            Sketch sketch = manifest.isDamaged(one)
                    ? null
                    : Sketch.read(store, directory, one, manifest);
            if (sketch != null) {
                found.addAll(sketch.extents(wanted, inParts));
                continue;
            }
            for (Extent part : Measuring.measure(
                    store, directory, manifest, List.of(one), stepBytes)) {
                found.add(new Extent( // only a sketch can exclude records
                        part.first(), part.next(), Math.max(part.sizeBytes(), 1)));
            }
        }
        return state.withExtents(found);
    }

    @Override
    public long worthReading() {
        return 0;
    }

    /** Nothing prevents that the files change, so each task checks that they are unchanged. */
    @Override
    public List<ScanRange> held(List<ScanRange> planned) {
        Manifest manifest = manifest();
        List<ScanRange> found = new ArrayList<>();
        for (ScanRange one : planned) {
            found.add(one.with(manifest.isCompacted()
                    ? ScanRange.Guard.ofFiles(manifest.files(one.first(), one.end()))
                    : ScanRange.Guard.cleanedBelow(manifest.cleanedBelow())));
        }
        return found;
    }

    @Override
    public BatchSource batches(
            ScanRange range, Set<String> columns, Losses losses, boolean isLast, boolean selects) {
        return new Source(range, losses, PartReading.Need.of(columns, selects));
    }

    @Override
    public void close() {}

    // --- one range ---

    /** Yields the batches of the pieces of a range, segment by segment. */
    private final class Source implements BatchSource {
        private final ScanRange range;
        private final Losses losses;
        private final PartReading.Need need;
        private final Window window = new Window();
        private int piece;
        private SegmentReader open;
        private long reached;
        private long until; // the offset up to which the open segment is read
        private String missing = "";
        private String notIndexed = ""; // a segment with an unusable subject index

        Source(ScanRange range, Losses losses, PartReading.Need need) {
            this.range = range;
            this.losses = losses;
            this.need = need;
            this.reached = range.first();
        }

        @Override
        public boolean next(RecordBatch into) {
            try {
                while (true) {
                    if (open == null && reached >= end()) {
                        if (++piece >= range.pieces().size()) {
                            return false;
                        }
                        reached = range.pieces().get(piece).first();
                    } else if (open == null) {
                        openNext();
                    } else if (open.next(into)) {
                        return true;
                    } else {
                        leave();
                    }
                }
            } catch (IOException error) {
                throw failed(error);
            }
        }

        @Override
        public boolean complete(RecordBatch shown, Rows rows) {
            try {
                return open.complete(shown, rows);
            } catch (IOException error) {
                throw failed(error);
            }
        }

        private long end() {
            return range.pieces().get(piece).next();
        }

        /**
         * Called when the wanted part of the open segment was read. The next piece may begin in the
         * same segment.
         */
        private void leave() {
            reached = Math.min(open.segment().nextOffset(), Math.max(until, reached));
            if (open.isIndexBad()) { // the read without the index finds the problem
                reached = open.reached();
                notIndexed = open.segment().file();
            }
            boolean isDone = reached >= end() && !open.isIndexBad();
            while (reached >= end() && piece + 1 < range.pieces().size()) {
                piece++;
                reached = Math.max(reached, range.pieces().get(piece).first());
            }
            if (isDone && reached < Math.min(end(), open.segment().nextOffset())) {
                until = end();
                open.seekOn(reached, until);
            } else {
                close();
            }
        }

        private void openNext() throws IOException {
            Look look = look(range.first(), range.end());
            Manifest manifest = look.manifest();
            checkSame(manifest, range);
            long end = end();
            if (reached < manifest.logStartOffset()) {
                long following = Math.min(manifest.logStartOffset(), end);
                losses.removed(reached, following);
                reached = following;
                return;
            }
            Manifest.Segment segment = segmentAt(manifest, reached);
            if (segment == null || segment.baseOffset() >= end) {
                SegmentReader.reportGap(manifest, reached, end, losses);
                reached = end;
                return;
            }
            try {
                open = new SegmentReader(store, directory, manifest, segment, window);
            } catch (FileNotFoundException error) {
                // The file may have been replaced. So the manifest is read again, at most once per
                // file.
                if (missing.equals(segment.file())) {
                    throw new Failure(Failure.STORAGE_ERROR,
                            directory + " lacks " + missing + ", which its manifest lists",
                            "copy the manifest first and the segments after it, or use server=",
                            error);
                }
                missing = segment.file();
                return;
            }
            SegmentReader.reportGap(manifest, reached, Math.min(segment.baseOffset(), end), losses);
            boolean inRuns = goesBySubject(manifest);
            until = inRuns ? range.end() : end;
            BatchParts parts = inRuns || need == PartReading.Need.ALL || manifest.isDamaged(segment)
                    ? null
                    : Sketch.parts(store, directory, segment, manifest,
                            need == PartReading.Need.SOME_VALUES);
            if (parts != null) {
                open.readParts(parts, need);
            }
            open.seek(manifest, look.erased(), reached, until, losses, this::isWanted);
        }

        /**
         * Returns true if the open segment is read by its subject index, up to the end of the
         * range.
         */
        private boolean goesBySubject(Manifest manifest) throws IOException {
            Manifest.Segment segment = open.segment();
            if (subject == null || manifest.isDamaged(segment) || notIndexed.equals(segment.file())) {
                return false;
            }
            FileStore.Opened file = null;
            try {
                file = SubjectIndex.open(store, directory, segment);
                SubjectIndex index = SubjectIndex.read(file, segment, manifest);
                SubjectIndex.Runs runs = index == null ? null : index.runsOf(subject);
                if (runs != null) {
                    FileStore.Opened used = file;
                    file = null; // closed with the runs
                    return open.readRuns(index, runs, used, left(),
                            need != PartReading.Need.HEADS);
                }
            } catch (IOException error) {
                return false; // the index only repeats content of the segment
            } finally {
                if (file != null) {
                    SegmentReader.close(file);
                }
            }
            return false;
        }

        /** Returns the pieces that are not read yet. The first one begins at {@code reached}. */
        private List<Extent> left() {
            List<Extent> found = new ArrayList<>(
                    range.pieces().subList(piece, range.pieces().size()));
            found.set(0, new Extent(reached, end(), 0));
            return found;
        }

        private boolean isWanted(BatchHeader header) {
            return header.maxTimestampNs() >= notBeforeNs && header.baseTimestampNs() <= notAfterNs;
        }

        @Override
        public void close() {
            if (open != null) {
                open.close();
                open = null;
            }
        }
    }

    private static Manifest.Segment segmentAt(Manifest manifest, long offset) {
        for (Manifest.Segment one : manifest.committed()) {
            if (one.nextOffset() > offset) {
                return one;
            }
        }
        return null;
    }

    private void checkSame(Manifest manifest, ScanRange range) {
        if (!manifest.lineage().equals(range.identity())) {
            throw new Failure(Failure.STALE_INCARNATION, "'" + stream
                    + "' was created again or truncated since the read was planned", "read again");
        }
        ScanRange.Guard guard = range.guard();
        boolean changed = guard.files() != null
                && !guard.files().equals(manifest.files(range.first(), range.end()));
        if (guard.cleanedBelow() >= 0) {
            changed = manifest.cleanedBelow() > guard.cleanedBelow() || manifest.isCompacted();
        }
        if (changed) {
            throw new Failure(Failure.SEGMENTS_CHANGED, "'" + stream + "' was compacted since the"
                    + " read was planned: the newest value of a key may have moved beyond the end"
                    + " of the read", "read again; read a copy of the directory; or use server=");
        }
    }

    private Manifest manifest() {
        return Manifest.read(store, directory, last);
    }

    /**
     * A manifest, and the erased records of a range; null if the manifest lists no erased record of
     * the range.
     */
    private record Look(Manifest manifest, ErasedSet erased) {}

    /**
     * Reads the manifest, and its erased files with offsets of [first, end). For a stream without
     * erased files, no class of Roaring is loaded.
     */
    private Look look(long first, long end) {
        while (true) {
            Manifest manifest = manifest();
            List<Manifest.Erased> files = manifest.erased(first, end);
            if (files.equals(erasedFiles)) {
                return new Look(manifest, erased);
            }
            try {
                ErasedSet found = files.isEmpty() ? null : ErasedSet.read(store, directory, files);
                // A daemon may have replaced the files since the manifest was read.
                if (found == null || found.isComplete()
                        || manifest().erased(first, end).equals(files)) {
                    erased = found;
                    erasedFiles = files;
                    return new Look(manifest, found);
                }
            } catch (IOException error) {
                throw failed(error);
            }
        }
    }

    private long sizeOf(String path) {
        try (FileStore.Opened file = store.open(path)) {
            return file.size();
        } catch (FileNotFoundException error) {
            return 0;
        } catch (IOException error) {
            throw failed(error);
        }
    }

    private Failure failed(IOException error) {
        return new Failure(Failure.STORAGE_ERROR,
                "reading " + directory + ": " + error.getMessage(), "", error);
    }

    private static String find(FileStore store, String path, String stream) {
        String root = path.length() > 1 && path.endsWith("/")
                ? path.substring(0, path.length() - 1)
                : path;
        try {
            for (String one : List.of(root, root + "/streams/" + stream, root + "/" + stream)) {
                if (store.isFile(one + "/" + Manifest.NAME)) {
                    return one;
                }
            }
            String reason = store.isDirectory(root)
                    ? "holds no stream"
                    : "is not a directory on this host";
            throw Failure.invalid("path='" + path + "' " + reason,
                    "give a stream's directory, or a data directory and the option stream; "
                    + "the driver's host and every executor need it");
        } catch (IOException error) {
            throw new Failure(Failure.STORAGE_ERROR,
                    "reading " + path + ": " + error.getMessage(), "", error);
        }
    }
}
