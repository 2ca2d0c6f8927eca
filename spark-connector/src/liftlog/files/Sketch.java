package liftlog.files;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.zip.CRC32C;
import liftlog.records.Bytes;
import liftlog.scan.Extent;
import liftlog.scan.Items;
import liftlog.scan.Narrowing;

/**
 * The sketch beside a sealed segment. It states which blocks can hold records of a subject, a key
 * or a time, and has checksums of the parts of batches. docs/reference/storage-format.md describes
 * the format. If a sketch has version 1, which has no such checksums, only its blocks are used.
 */
final class Sketch {
    private static final int MAGIC = 0x4B534C4C;
    private static final int HEAD_1 = 40;
    private static final int HEAD_2 = 48;
    private static final int ENTRY = 32;
    private static final int PROBES = 7;
    private static final long SPREAD = 0x9E3779B97F4A7C15L;
    private static final long MOST_BYTES = 128 << 20; // maximum size of filters, in the driver
    private static final int MOST_ITEMS = 256;
    private static final long MOST_PARTS = 32 << 20; // maximum size of checksums, in each task

    private final Manifest.Segment segment;
    private final int blocks;
    private final byte[] entries; // entries of the blocks, then of the batches
    private final int worthReading;
    private byte[] filters = {};
    private BatchParts parts; // null in version 1, or if there are none or too many

    private Sketch(Manifest.Segment segment, int blocks, byte[] entries, int worthReading) {
        this.segment = segment;
        this.blocks = blocks;
        this.entries = entries;
        this.worthReading = worthReading;
    }

    /**
     * Reads a sketch with its filters, to select blocks. Returns null if the file is missing,
     * damaged, or belongs to another state of the segment.
     */
    static Sketch read(
            FileStore store, String directory, Manifest.Segment segment, Manifest manifest) {
        return read(store, directory, segment, manifest, true, false);
    }

    /**
     * Reads the checksums of heads and, {@code withValues}, those of values, if they exist. Returns
     * null in the same cases as {@code read}.
     */
    static BatchParts parts(FileStore store, String directory, Manifest.Segment segment,
            Manifest manifest, boolean withValues) {
        Sketch found = read(store, directory, segment, manifest, false, withValues);
        return found == null ? null : found.parts;
    }

    private static Sketch read(FileStore store, String directory, Manifest.Segment segment,
            Manifest manifest, boolean withFilters, boolean withValues) {
        String path = directory + "/" + segment.file();
        String place = path.substring(0, path.length() - ".log".length()) + ".sketch";
        try (FileStore.Opened file = store.open(place)) {
            int history = manifest.historyCheck(segment);
            return read(file, segment, history, withFilters, withValues);
        } catch (IOException error) {
            return null; // the sketch only repeats content of the segment
        }
    }

    private static Sketch read(FileStore.Opened file, Manifest.Segment segment, int history,
            boolean withFilters, boolean withValues) throws IOException {
        byte[] head = bytes(file, 0, HEAD_2);
        if (head == null) {
            return null;
        }
        long version = Bytes.u32(head, 4);
        boolean isOurs = Bytes.i32(head, 0) == MAGIC
                && (version == 1 || version == 2)
                && Bytes.i32(head, 12) == history
                && Bytes.i64(head, 16) == segment.sizeBytes()
                && Bytes.i64(head, 24) == segment.nextOffset();
        if (!isOurs) {
            return null;
        }
        int size = version == 1 ? HEAD_1 : HEAD_2;
        long blocks = Bytes.u32(head, 8);
        long batches = version == 1 ? 0 : Bytes.u32(head, 36);
        long batchesAt = blocks * ENTRY;
        boolean areFew = batches * BatchParts.ENTRY <= MOST_PARTS;
        if (!withFilters && !areFew) {
            return null;
        }
        byte[] entries = bytes(file, size, batchesAt + batches * BatchParts.ENTRY);
        if (blocks == 0 || entries == null || !isIntact(head, size - 4, entries)) {
            return null;
        }
        Sketch found = new Sketch(segment, (int) blocks, entries, file.worthReading());
        long filtersAt = size + (long) entries.length;
        long filterBytes = found.word((int) blocks - 1, 24) + found.word((int) blocks - 1, 28);
        byte[] checks = null;
        if (withFilters) {
            found.filters = checked(file, filtersAt, filterBytes, Bytes.i32(head, 32));
            if (found.filters == null) {
                return null;
            }
        } else if (withValues && batches > 0) {
            long checksAt = filtersAt + filterBytes;
            long checkBytes = file.size() - checksAt;
            checks = checkBytes <= MOST_PARTS
                    ? checked(file, checksAt, checkBytes, Bytes.i32(head, 40))
                    : null;
        }
        if (batches > 0 && areFew) {
            found.parts = new BatchParts(entries, (int) batchesAt, checks);
        }
        return found;
    }

    private static boolean isIntact(byte[] head, int size, byte[] entries) {
        CRC32C check = new CRC32C();
        check.update(head, 0, size);
        check.update(entries, 0, entries.length);
        return (int) check.getValue() == Bytes.i32(head, size);
    }

    private static byte[] checked(FileStore.Opened file, long position, long length, int check)
            throws IOException {
        byte[] found = bytes(file, position, length);
        return found != null && Bytes.crc32c(found, 0, found.length) == check ? found : null;
    }

    /** Returns null if the file is shorter, or if the size is above the limit for memory. */
    private static byte[] bytes(FileStore.Opened file, long position, long length)
            throws IOException {
        if (length < 0 || length > MOST_BYTES || position + length > file.size()) {
            return null;
        }
        byte[] found = new byte[(int) length];
        return file.read(position, found, 0, found.length) == found.length ? found : null;
    }

    /**
     * Returns the blocks, which cover the segment without gaps. A block without a wanted record has
     * the size 0. The size of any other block is the number of bytes that a read of it needs; with
     * {@code inParts} these are the head of each batch, and a few values.
     */
    List<Extent> extents(Narrowing wanted, boolean inParts) {
        List<Extent> found = new ArrayList<>();
        long[] subjects = hashes('s', wanted.subjects());
        long[] keys = hashes('k', wanted.keys());
        int batch = 0;
        for (int i = 0; i < blocks; i++) {
            boolean some = number(i, 16) >= wanted.notBeforeNs()
                    && number(i, 8) <= wanted.notAfterNs()
                    && (subjects == null || holdsSome(i, subjects))
                    && (keys == null || holdsSome(i, keys));
            boolean isLast = i == blocks - 1;
            long first = segment.baseOffset() + word(i, 0);
            long next = isLast ? segment.nextOffset() : segment.baseOffset() + word(i + 1, 0);
            long end = isLast ? segment.sizeBytes() : word(i + 1, 4);
            long size = end - word(i, 4);
            if (inParts && parts != null) {
                for (size = 0; batch < parts.count() && parts.position(batch) < end; batch++) {
                    size += partBytes(batch);
                }
                size = Math.max(size, 1);
            }
            found.add(new Extent(first, next, some ? size : 0));
        }
        return found;
    }

    /**
     * Returns the approximate number of bytes to read of a batch if few of its values are wanted.
     */
    private long partBytes(int batch) {
        long next = batch + 1 < parts.count() ? parts.position(batch + 1) : segment.sizeBytes();
        long whole = next - parts.position(batch);
        int head = parts.headBytes(batch);
        return head == 0 ? whole : Math.min(whole, Integer.toUnsignedLong(head) + worthReading);
    }

    private boolean holdsSome(int i, long[] items) {
        boolean found = false;
        for (int one = 0; one < items.length && !found; one++) {
            found = holds(i, items[one]);
        }
        return found;
    }

    private boolean holds(int i, long item) {
        int start = (int) word(i, 24);
        long bits = 8 * word(i, 28);
        if (bits == 0) {
            return false;
        }
        long step = item * SPREAD >>> 32 | 1;
        for (int probe = 0; probe < PROBES; probe++) {
            long bit = (item + probe * step) % bits;
            if ((filters[start + (int) (bit >> 3)] >> (bit & 7) & 1) == 0) {
                return false;
            }
        }
        return true;
    }

    /** Returns null if the filters cannot exclude anything, or if checking them takes too long. */
    private static long[] hashes(char kind, Items items) {
        if (items == null || !items.prefixes().isEmpty() || items.whole().size() > MOST_ITEMS) {
            return null;
        }
        return items.whole().stream().mapToLong(item -> hash(kind, item)).toArray();
    }

    private static long hash(char kind, byte[] item) {
        CRC32C sum = new CRC32C();
        sum.update(kind);
        sum.update(item, 0, item.length);
        return sum.getValue();
    }

    private long word(int i, int field) {
        return Bytes.u32(entries, i * ENTRY + field);
    }

    private long number(int i, int field) {
        return Bytes.i64(entries, i * ENTRY + field);
    }
}
