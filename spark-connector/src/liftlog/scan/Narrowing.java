package liftlog.scan;

import java.io.Serializable;

/**
 * The limits that the conditions of a query set for a read, in addition to its options.
 *
 * @param first the first offset that can match
 * @param end after the last offset that can match
 * @param notBeforeUs the earliest time that can match, in microseconds since 1970
 * @param notAfterUs the latest one
 * @param subjects the only subjects, or null
 * @param keys the only keys, or null
 */
public record Narrowing(
        long first, long end, long notBeforeUs, long notAfterUs, Items subjects, Items keys)
        implements Serializable {

    public static final Narrowing NONE =
            new Narrowing(0, Long.MAX_VALUE, Long.MIN_VALUE, Long.MAX_VALUE, null, null);

    private static final long MOST_US = Long.MAX_VALUE / 1000 - 1;

    public Narrowing from(long offset) {
        return new Narrowing(Math.max(first, offset), end, notBeforeUs, notAfterUs, subjects, keys);
    }

    public Narrowing upTo(long offset) {
        return new Narrowing(first, Math.min(end, offset), notBeforeUs, notAfterUs, subjects, keys);
    }

    public Narrowing notBefore(long us) {
        return new Narrowing(first, end, Math.max(notBeforeUs, us), notAfterUs, subjects, keys);
    }

    public Narrowing notAfter(long us) {
        return new Narrowing(first, end, notBeforeUs, Math.min(notAfterUs, us), subjects, keys);
    }

    public Narrowing ofSubjects(Items some) {
        return new Narrowing(first, end, notBeforeUs, notAfterUs, some, keys);
    }

    public Narrowing ofKeys(Items some) {
        return new Narrowing(first, end, notBeforeUs, notAfterUs, subjects, some);
    }

    /**
     * Returns limits for the records that match both. Other records may be within the limits, too.
     */
    public Narrowing and(Narrowing other) {
        return new Narrowing(Math.max(first, other.first), Math.min(end, other.end),
                Math.max(notBeforeUs, other.notBeforeUs), Math.min(notAfterUs, other.notAfterUs),
                Items.both(subjects, other.subjects), Items.both(keys, other.keys));
    }

    /**
     * Returns limits for the records that match one of the two. Other records may be within the
     * limits, too.
     */
    public Narrowing or(Narrowing other) {
        return new Narrowing(Math.min(first, other.first), Math.max(end, other.end),
                Math.min(notBeforeUs, other.notBeforeUs), Math.max(notAfterUs, other.notAfterUs),
                Items.either(subjects, other.subjects), Items.either(keys, other.keys));
    }

    /** Returns true if some records between {@code first} and {@code end} may not be wanted. */
    public boolean selects() {
        return subjects != null || keys != null || beginsAtTime() || notAfterUs != Long.MAX_VALUE;
    }

    public boolean beginsAtTime() {
        return notBeforeUs != Long.MIN_VALUE;
    }

    /** Returns the earliest time in nanoseconds, the unit of batches. */
    public long notBeforeNs() {
        return notBeforeUs < 0 ? Long.MIN_VALUE : Math.min(notBeforeUs, MOST_US) * 1000;
    }

    public long notAfterNs() {
        if (notAfterUs > MOST_US) {
            return Long.MAX_VALUE;
        }
        return notAfterUs < -MOST_US ? Long.MIN_VALUE : notAfterUs * 1000 + 999;
    }
}
