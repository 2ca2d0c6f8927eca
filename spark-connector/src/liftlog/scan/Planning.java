package liftlog.scan;

import java.util.ArrayList;
import java.util.List;
import java.util.TreeSet;

/** Divides the offsets of a read among its tasks. Pure. */
public final class Planning {
    private static final int STEPS_PER_PART = 16;

    private Planning() {}

    /**
     * Divides [first, end) into ranges of about equal size. No range is much larger than
     * {@code targetBytes}. Usually the number of ranges is a multiple of {@code slots}, the number
     * of concurrent tasks, so that all of them work until the end.
     */
    public static List<ScanRange> split(
            StreamState state, long first, long end, long targetBytes, int slots) {
        List<ScanRange> ranges = new ArrayList<>();
        for (Extent part : cut(state, first, end, targetBytes, slots)) {
            ranges.add(range(state, part.first(), part.next(), List.of(part)));
        }
        return ranges;
    }

    /**
     * Like {@code split}, but leaves out the extents of size 0, unless a gap of at most about
     * {@code worthReading} bytes would result. Offsets that no extent covers are read.
     */
    public static List<ScanRange> select(
            StreamState found, long first, long end, long targetBytes, int slots,
            long worthReading) {
        StreamState state = found.withExtents(tiled(found.extents(), first, end));
        List<ScanRange> ranges = new ArrayList<>();
        for (Extent part : cut(state, first, end, targetBytes, slots)) {
            List<Extent> pieces = new ArrayList<>();
            for (Extent one : clip(state.extents(), part.first(), part.next())) {
                if (one.sizeBytes() > 0) {
                    join(pieces, one, worthReading);
                }
            }
            if (!pieces.isEmpty()) {
                ranges.add(range(state, pieces.get(0).first(),
                        pieces.get(pieces.size() - 1).next(), pieces));
            }
        }
        return ranges;
    }

    private static void join(List<Extent> pieces, Extent one, long worthReading) {
        Extent last = pieces.isEmpty() ? null : pieces.get(pieces.size() - 1);
        long skipped = last == null ? 0 : one.first() - last.next();
        double bytes = (double) skipped * one.sizeBytes() / (one.next() - one.first());
        if (last == null || skipped > 0 && bytes > worthReading) {
            pieces.add(one);
        } else {
            pieces.set(pieces.size() - 1, new Extent(
                    last.first(), one.next(), last.sizeBytes() + one.sizeBytes()));
        }
    }

    /**
     * Returns the extents, with additional extents of size 1 for offsets that they do not cover.
     */
    private static List<Extent> tiled(List<Extent> extents, long first, long end) {
        List<Extent> found = new ArrayList<>();
        long reached = first;
        for (Extent one : clip(extents, first, end)) {
            if (one.first() > reached) {
                found.add(new Extent(reached, one.first(), 1));
            }
            found.add(one);
            reached = Math.max(reached, one.next());
        }
        if (reached < end) {
            found.add(new Extent(reached, end, 1));
        }
        return found;
    }

    private static ScanRange range(StreamState state, long first, long end, List<Extent> pieces) {
        return new ScanRange(state.stream(), state.identity(), state.leaderEpoch(),
                first, end, pieces, ScanRange.Guard.NONE);
    }

    private static List<Extent> cut(
            StreamState state, long first, long end, long targetBytes, int slots) {
        List<Extent> ranges = new ArrayList<>();
        if (first >= end) {
            return ranges;
        }
        List<Extent> parts = clip(state.extents(), first, end);
        long total = sizeOf(parts);
        long least = Math.max(-Math.floorDiv(-total, targetBytes), 1);
        long count = Math.min(inWaves(least, slots), end - first);
        TreeSet<Long> borders = new TreeSet<>(List.of(first, end));
        for (long i = 1; i < count; i++) {
            long cut = offsetAfter(parts, scaled(total, i, count));
            if (cut > first && cut < end) {
                borders.add(cut);
            }
        }
        Long before = null;
        for (Long border : borders) {
            if (before != null) {
                ranges.add(new Extent(before, border, 0));
            }
            before = border;
        }
        return ranges;
    }

    /**
     * Rounds up to a multiple of {@code slots}. Does not change a count of 1, or a count that would
     * more than double.
     */
    private static long inWaves(long count, int slots) {
        long whole = -Math.floorDiv(-count, slots) * slots;
        return count == 1 || whole > 2 * count ? count : whole;
    }

    /**
     * Returns the size of the extents to measure, for a stream that is divided into parts of this
     * size.
     */
    public static long stepOf(long targetBytes) {
        return Math.max(1, targetBytes / STEPS_PER_PART);
    }

    /**
     * Returns the offset that is about {@code mostBytes} after {@code first}. The result is at
     * least one record after {@code first}.
     */
    public static long limitBytes(StreamState state, long first, long end, long mostBytes) {
        List<Extent> parts = clip(state.extents(), first, end);
        if (sizeOf(parts) <= mostBytes) {
            return end;
        }
        return Math.min(Math.max(offsetAfter(parts, mostBytes), first + 1), end);
    }

    private static List<Extent> clip(List<Extent> extents, long first, long end) {
        List<Extent> found = new ArrayList<>();
        for (Extent extent : extents) {
            long from = Math.max(extent.first(), first);
            long to = Math.min(extent.next(), end);
            if (from < to) {
                long whole = extent.next() - extent.first();
                long size = scaled(extent.sizeBytes(), to - from, whole);
                found.add(new Extent(from, to, extent.sizeBytes() > 0 ? Math.max(size, 1) : 0));
            }
        }
        return found;
    }

    private static long sizeOf(List<Extent> parts) {
        return parts.stream().mapToLong(Extent::sizeBytes).sum();
    }

    /** Returns the offset with about this number of bytes before it. */
    private static long offsetAfter(List<Extent> parts, long sizeBytes) {
        long left = sizeBytes;
        for (Extent part : parts) {
            if (left < part.sizeBytes()) {
                long width = part.next() - part.first();
                return part.first() + Math.round((double) width * left / part.sizeBytes());
            }
            left -= part.sizeBytes();
        }
        return parts.isEmpty() ? 0 : parts.get(parts.size() - 1).next();
    }

    /** Returns {@code number * part / whole} without an overflow. */
    private static long scaled(long number, long part, long whole) {
        return Math.multiplyHigh(number, part) == 0 && number * part >= 0
                ? number * part / whole
                : (long) ((double) number * part / whole);
    }
}
