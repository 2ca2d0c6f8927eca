package liftlog.files;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeMap;
import liftlog.records.BatchHeader;
import liftlog.records.Bytes;
import liftlog.records.Failure;
import liftlog.records.RecordBatch;
import org.roaringbitmap.PeekableIntIterator;
import org.roaringbitmap.RoaringBitmap;

/**
 * The offsets of erased records, from the erased files that a manifest lists. No reader returns
 * these records. A file consists of two halves with the same content:
 *
 * <pre>
 *  0  4  magic "LERA"             24  8  length of the bitmap
 *  4  2  version 1                32  4  CRC-32C of the incarnation
 *  6  2  zeros                    36  4  CRC-32C of the bitmap
 *  8  8  first offset             40 20  zeros
 * 16  8  number of offsets        60  4  CRC-32C of all before it
 * 64     a Roaring bitmap, portable: offsets minus the first one
 * </pre>
 *
 * <p>The second half begins at the next multiple of 4096 bytes. A half is valid if its CRC-32C and
 * its first offset equal those of its entry in the manifest. This proves that the half belongs to
 * the manifest, so readers do not compare the incarnation.
 */
final class ErasedSet {
    private static final int CHUNK_BITS = 24;
    private static final long CHUNK = 1L << CHUNK_BITS; // a file has the offsets of one chunk
    private static final int PAGE = 4096;
    private static final int HEADER = 64;
    private static final int MAGIC = 0x4152454C;
    private static final int VERSION = 1;

    private final TreeMap<Long, RoaringBitmap> chunks = new TreeMap<>(); // relative to their starts
    private final List<Manifest.Erased> unreadable = new ArrayList<>();

    private ErasedSet() {}

    /**
     * Reads the content of these files. The set is incomplete if a file is missing, or if both
     * halves of a file are damaged. Throws IOException for an error that does not show whether the
     * content of a file is damaged.
     */
    static ErasedSet read(FileStore store, String directory, List<Manifest.Erased> files)
            throws IOException {
        ErasedSet found = new ErasedSet();
        for (Manifest.Erased one : files) {
            RoaringBitmap bits = bitsOf(store, directory, one);
            if (bits == null) {
                found.unreadable.add(one);
            } else if (!bits.isEmpty()) {
                found.chunks.merge(one.first() >> CHUNK_BITS, bits,
                        (some, more) -> RoaringBitmap.or(some, more));
            }
        }
        return found;
    }

    /** Returns true if all files could be read. */
    boolean isComplete() {
        return unreadable.isEmpty();
    }

    /**
     * Hides the erased records of a batch that was just loaded. Throws Failure CORRUPT_METADATA if
     * it is not known which records are erased.
     */
    void hideIn(RecordBatch batch) {
        BatchHeader header = batch.header();
        long first = header.baseOffset();
        long next = header.nextOffset();
        checkReadable(first, next);
        long last = next - 1 >> CHUNK_BITS;
        for (var one = chunks.ceilingEntry(first >> CHUNK_BITS);
                one != null && one.getKey() <= last; one = chunks.higherEntry(one.getKey())) {
            long base = one.getKey() << CHUNK_BITS;
            int low = (int) Math.max(first - base, 0);
            int high = (int) Math.min(next - base, CHUNK);
            long found = one.getValue().nextValue(low);
            if (found < 0 || found >= high) {
                continue;
            }
            PeekableIntIterator bits = one.getValue().getIntIterator();
            bits.advanceIfNeeded(low);
            while (bits.hasNext() && bits.peekNext() < high) {
                batch.hide(base + bits.next());
            }
        }
    }

    private void checkReadable(long first, long next) {
        for (Manifest.Erased one : unreadable) {
            if (one.first() < next && one.next() > first) {
                throw new Failure(Failure.CORRUPT_METADATA, "the file " + one.file()
                        + " cannot be read, which says what is erased of the records ["
                        + one.first() + ", " + one.next() + ")",
                        "no record of this range is shown; restore the file from a backup");
            }
        }
    }

    /**
     * Returns the offsets in a file, relative to the start of its chunk; null if both halves are
     * damaged.
     */
    private static RoaringBitmap bitsOf(FileStore store, String directory, Manifest.Erased listed)
            throws IOException {
        try (FileStore.Opened file = store.open(directory + "/" + listed.file())) {
            int size = Math.toIntExact(listed.sizeBytes());
            long second = (listed.sizeBytes() + PAGE - 1) / PAGE * PAGE;
            for (long at : new long[] {0, second}) {
                if (at + size > file.size()) {
                    return null;
                }
                byte[] half = new byte[size];
                if (Disk.read(file, at, half, 0, size) == size
                        && Bytes.crc32c(half, 0, size) == listed.check()) {
                    return parse(half, listed);
                }
            }
            return null;
        } catch (FileNotFoundException error) {
            return null;
        }
    }

    /** Parses a half that matches its entry; returns null if its content is contradictory. */
    private static RoaringBitmap parse(byte[] half, Manifest.Erased listed) {
        long inChunk = listed.first() & CHUNK - 1;
        boolean fits = half.length >= HEADER
                && Bytes.i32(half, 0) == MAGIC
                && Bytes.u16(half, 4) == VERSION
                && Bytes.i64(half, 8) == listed.first()
                && Bytes.i64(half, 24) == half.length - HEADER
                && Bytes.crc32c(half, 0, HEADER - 4) == Bytes.i32(half, HEADER - 4)
                && Bytes.crc32c(half, HEADER, half.length - HEADER) == Bytes.i32(half, 36);
        if (!fits) {
            return null;
        }
        RoaringBitmap bits = new RoaringBitmap();
        try {
            bits.deserialize(ByteBuffer.wrap(half, HEADER, half.length - HEADER).slice());
        } catch (IOException | RuntimeException error) {
            return null;
        }
        if (bits.getLongCardinality() != Bytes.i64(half, 16)
                || !bits.isEmpty() && inChunk + Integer.toUnsignedLong(bits.last()) >= CHUNK) {
            return null;
        }
        RoaringBitmap moved = RoaringBitmap.addOffset(bits, inChunk);
        long end = listed.next() - (listed.first() - inChunk);
        if (end < CHUNK) {
            moved.remove(Math.max(end, 0), CHUNK);
        }
        return moved;
    }
}
