package liftlog.files;

import java.io.IOException;
import java.util.Arrays;
import java.util.List;
import java.util.zip.DataFormatException;
import java.util.zip.Inflater;
import liftlog.records.BatchHeader;
import liftlog.records.Bytes;
import liftlog.records.CorruptBatch;
import liftlog.records.Failure;
import liftlog.records.RecordBatch;
import liftlog.scan.Extent;

/**
 * Reads the records of a segment on one subject by its {@link SubjectIndex}. A run is a record
 * batch. Its values are read from their places in the segment. The checksum of the batch includes
 * the values.
 */
final class SubjectRuns implements AutoCloseable {
    private static final int CHECKING = 512; // bytes that can be read in the time of one more value
    private static final int PLACE = 4;
    private static final int MOST_HEAD = 64 << 20;
    private static final int SPARE = 4096;

    private final SubjectIndex index;
    private final FileStore.Opened file; // file of the index
    private final FileStore.Opened segment;
    private final long baseOffset;
    private final boolean withValues;
    private final int[] runs; // the wanted runs
    private final Inflater inflater = new Inflater();
    private byte[] stored = {};
    private byte[] head = {};
    private byte[] bytes = {};
    private int here; // the first wanted run whose bytes are in `stored`
    private int behind; // the index after the last wanted run in `stored`
    private int next;

    /** Chooses the runs of a subject with records in one of these pieces, which ascend. */
    SubjectRuns(SubjectIndex index, SubjectIndex.Runs ofSubject, FileStore.Opened file,
            FileStore.Opened segment, long baseOffset, List<Extent> pieces, boolean withValues) {
        this.index = index;
        this.file = file;
        this.segment = segment;
        this.baseOffset = baseOffset;
        this.withValues = withValues;
        this.runs = wanted(ofSubject, pieces);
    }

    private int[] wanted(SubjectIndex.Runs ofSubject, List<Extent> pieces) {
        int[] found = new int[ofSubject.end() - ofSubject.first()];
        int count = 0;
        int piece = 0;
        for (int run = ofSubject.first(); run < ofSubject.end(); run++) {
            while (piece < pieces.size()
                    && pieces.get(piece).next() <= baseOffset + index.first(run)) {
                piece++;
            }
            if (piece < pieces.size()
                    && pieces.get(piece).first() <= baseOffset + index.last(run)) {
                found[count++] = run;
            }
        }
        return Arrays.copyOf(found, count);
    }

    /**
     * Returns true if reading the runs takes less time than reading the {@code span} bytes that
     * contain them.
     */
    boolean isWorthIt(long span) throws IOException {
        long cost = index.sizeBytes();
        long values = 0;
        long size = file.size();
        for (int run : runs) {
            if (!index.isPossible(run, size)) {
                return false;
            }
            cost += index.size(run) + (withValues ? index.length(run) : 0);
            values += index.records(run);
        }
        if (withValues) {
            cost += values * (CHECKING + Math.min(segment.worthReading(), span / (values + 1)));
        }
        return 2 * cost <= span;
    }

    /**
     * Shows the next batch. Returns false after the last one. Throws CorruptBatch if a run does not
     * match the index; the segment must then be read in another way.
     */
    boolean next(RecordBatch into) throws IOException, CorruptBatch {
        if (next == runs.length) {
            return false;
        }
        if (next >= behind) {
            load();
        }
        int run = runs[next++];
        int at = (int) (index.position(run) - index.position(runs[here]));
        int size = index.size(run);
        if (Bytes.crc32c(stored, at, size) != index.check(run)) {
            throw new CorruptBatch("the checksum of a run does not match");
        }
        int headBytes = index.headBytes(run);
        unpack(at, size, headBytes + (long) PLACE * index.records(run));
        BatchHeader header = BatchHeader.parse(head, 0, headBytes);
        boolean isThat = header.length() == index.length(run)
                && header.recordCount() == index.records(run)
                && header.baseOffset() == baseOffset + index.first(run)
                && header.nextOffset() == baseOffset + index.last(run) + 1
                && header.codec() == 0
                && headBytes <= header.length();
        if (!isThat) {
            throw new CorruptBatch("a run is not the one that its entry describes");
        }
        if (bytes.length < header.length()) {
            bytes = new byte[header.length()];
        }
        System.arraycopy(head, 0, bytes, 0, headBytes);
        into.loadHead(bytes, 0, header, headBytes);
        if (withValues) {
            try {
                into.check(into.values);
                readValues(into, headBytes);
                header.checkBody(bytes, 0, header.length());
                into.load(bytes, 0, header);
            } catch (Failure error) {
                throw new CorruptBatch(error.getMessage());
            }
        }
        return true;
    }

    /** Reads the values to their places in the batch. One read covers neighbouring values. */
    private void readValues(RecordBatch batch, int headBytes) throws IOException, CorruptBatch {
        int count = batch.header().recordCount();
        int record = 0;
        while (record < count) {
            int at = batch.start(batch.values, record);
            long position = place(headBytes, record);
            long stop = position;
            int size = 0;
            while (record < count && place(headBytes, record) == stop) {
                int more = batch.size(batch.values, record++);
                size += more;
                stop += more;
            }
            if (Disk.read(segment, position, bytes, at, size) < size) {
                throw new CorruptBatch("a value lies behind the end of the segment");
            }
        }
        int values = batch.start(batch.values, count - 1) + batch.size(batch.values, count - 1);
        Arrays.fill(bytes, values, batch.header().length(), (byte) 0);
    }

    private long place(int headBytes, int record) {
        return Bytes.u32(head, headBytes + PLACE * record);
    }

    /**
     * Reads the next run, and the following runs that are stored next to it, up to the best size of
     * a read.
     */
    private void load() throws IOException {
        long position = index.position(runs[next]);
        long size = index.size(runs[next]);
        int stop = next + 1;
        while (stop < runs.length && index.position(runs[stop]) == position + size
                && size + index.size(runs[stop]) <= file.bestRead()) {
            size += index.size(runs[stop++]);
        }
        if (stored.length < size) {
            stored = new byte[(int) size];
        }
        Disk.read(file, position, stored, 0, (int) size);
        here = next;
        behind = stop;
    }

    private void unpack(int at, int size, long wanted) throws CorruptBatch {
        if (wanted > MOST_HEAD) {
            throw new CorruptBatch("a run of " + wanted + " bytes without its values");
        }
        if (head.length < wanted) {
            head = new byte[(int) wanted + SPARE];
        }
        inflater.reset();
        inflater.setInput(stored, at, size);
        try {
            int made = inflater.inflate(head, 0, (int) wanted);
            if (made < wanted || !inflater.finished() && inflater.inflate(new byte[1]) > 0) {
                throw new CorruptBatch("a run has another size than its entry says");
            }
        } catch (DataFormatException error) {
            throw new CorruptBatch("a run cannot be decompressed: " + error.getMessage());
        }
    }

    @Override
    public void close() {
        inflater.end();
        SegmentReader.close(file);
    }
}
