package liftlog.spark;

import java.sql.Timestamp;
import java.time.Instant;
import java.util.Arrays;
import liftlog.scan.Columns;
import liftlog.scan.Narrowing;
import liftlog.scan.Position;
import liftlog.scan.Subjects;
import org.apache.spark.sql.sources.EqualNullSafe;
import org.apache.spark.sql.sources.EqualTo;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.sources.GreaterThan;
import org.apache.spark.sql.sources.GreaterThanOrEqual;
import org.apache.spark.sql.sources.LessThan;
import org.apache.spark.sql.sources.LessThanOrEqual;

/** The conditions of a query, all of which must hold, as limits of a read. */
final class Conditions {
    private enum Kind { EQUAL, ABOVE, FROM, BELOW, UP_TO }

    private record Condition(Kind kind, String column, Object value) {}

    private Conditions() {}

    static Narrowing narrowed(Narrowing before, Filter[] filters) {
        Narrowing found = before;
        for (Filter filter : filters) {
            Condition one = condition(filter);
            if (one != null) {
                found = narrowed(found, one);
            }
        }
        return found;
    }

    /** Those that narrow a read, for Spark's plans. */
    static Filter[] usable(Filter[] filters) {
        return Arrays.stream(filters)
                .filter(one -> !Narrowing.NONE.equals(narrowed(Narrowing.NONE, new Filter[] {one})))
                .toArray(Filter[]::new);
    }

    private static Condition condition(Filter filter) {
        if (filter instanceof EqualTo one) {
            return new Condition(Kind.EQUAL, one.attribute(), one.value());
        } else if (filter instanceof EqualNullSafe one) {
            return new Condition(Kind.EQUAL, one.attribute(), one.value());
        } else if (filter instanceof GreaterThan one) {
            return new Condition(Kind.ABOVE, one.attribute(), one.value());
        } else if (filter instanceof GreaterThanOrEqual one) {
            return new Condition(Kind.FROM, one.attribute(), one.value());
        } else if (filter instanceof LessThan one) {
            return new Condition(Kind.BELOW, one.attribute(), one.value());
        } else if (filter instanceof LessThanOrEqual one) {
            return new Condition(Kind.UP_TO, one.attribute(), one.value());
        }
        return null;
    }

    private static Narrowing narrowed(Narrowing found, Condition one) {
        return switch (one.column()) {
            case Columns.OFFSET -> one.value() instanceof Long offset
                    ? byOffset(found, one.kind(), offset)
                    : found;
            case Columns.TIMESTAMP -> byTime(found, one.kind(), one.value());
            case Columns.SUBJECT -> one.kind() == Kind.EQUAL
                            && one.value() instanceof String subject && Subjects.isLiteral(subject)
                    ? found.ofSubject(subject)
                    : found;
            case Columns.KEY -> one.kind() == Kind.EQUAL && one.value() instanceof byte[] key
                    ? found.ofKey(key)
                    : found;
            default -> found;
        };
    }

    private static Narrowing byOffset(Narrowing found, Kind kind, long offset) {
        long after = offset == Long.MAX_VALUE ? offset : offset + 1;
        return switch (kind) {
            case EQUAL -> found.from(offset).upTo(after);
            case ABOVE -> found.from(after);
            case FROM -> found.from(offset);
            case BELOW -> found.upTo(offset);
            case UP_TO -> found.upTo(after);
        };
    }

    private static Narrowing byTime(Narrowing found, Kind kind, Object value) {
        Instant time = value instanceof Instant instant
                ? instant
                : value instanceof Timestamp stamp ? stamp.toInstant() : null;
        if (time == null) {
            return found;
        }
        long us = Position.microseconds(time);
        return switch (kind) {
            case EQUAL -> found.notBefore(us).notAfter(us);
            case ABOVE, FROM -> found.notBefore(us);
            case BELOW, UP_TO -> found.notAfter(us);
        };
    }
}
