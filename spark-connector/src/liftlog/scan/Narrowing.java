package liftlog.scan;

import java.io.Serializable;

/**
 * How the conditions of a query narrow a read, within the limits of its options.
 *
 * @param first the first offset that can match
 * @param end after the last offset that can match
 * @param notBeforeUs the earliest time that can match, in microseconds since 1970
 * @param notAfterUs the latest one
 * @param subject the only subject, or null
 * @param key the only key, or null
 */
public record Narrowing(
        long first, long end, long notBeforeUs, long notAfterUs, String subject, byte[] key)
        implements Serializable {

    public static final Narrowing NONE =
            new Narrowing(0, Long.MAX_VALUE, Long.MIN_VALUE, Long.MAX_VALUE, null, null);

    private static final long MOST_US = Long.MAX_VALUE / 1000 - 1;

    public Narrowing from(long offset) {
        return new Narrowing(Math.max(first, offset), end, notBeforeUs, notAfterUs, subject, key);
    }

    public Narrowing upTo(long offset) {
        return new Narrowing(first, Math.min(end, offset), notBeforeUs, notAfterUs, subject, key);
    }

    public Narrowing notBefore(long us) {
        return new Narrowing(first, end, Math.max(notBeforeUs, us), notAfterUs, subject, key);
    }

    public Narrowing notAfter(long us) {
        return new Narrowing(first, end, notBeforeUs, Math.min(notAfterUs, us), subject, key);
    }

    public Narrowing ofSubject(String one) {
        return new Narrowing(first, end, notBeforeUs, notAfterUs, one, key);
    }

    public Narrowing ofKey(byte[] one) {
        return new Narrowing(first, end, notBeforeUs, notAfterUs, subject, one);
    }

    /** Whether some of the records between {@code first} and {@code end} are not wanted. */
    public boolean selects() {
        return subject != null || key != null || beginsAtTime() || notAfterUs != Long.MAX_VALUE;
    }

    public boolean beginsAtTime() {
        return notBeforeUs != Long.MIN_VALUE;
    }

    /** In nanoseconds, as batches store them. */
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
