package liftlog.spark;

import java.nio.charset.StandardCharsets;
import java.sql.Timestamp;
import java.time.Instant;
import java.util.Arrays;
import java.util.Objects;
import liftlog.scan.Columns;
import liftlog.scan.Items;
import liftlog.scan.Narrowing;
import liftlog.scan.Position;
import liftlog.scan.Subjects;
import org.apache.spark.sql.sources.And;
import org.apache.spark.sql.sources.EqualNullSafe;
import org.apache.spark.sql.sources.EqualTo;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.sources.GreaterThan;
import org.apache.spark.sql.sources.GreaterThanOrEqual;
import org.apache.spark.sql.sources.In;
import org.apache.spark.sql.sources.LessThan;
import org.apache.spark.sql.sources.LessThanOrEqual;
import org.apache.spark.sql.sources.Or;
import org.apache.spark.sql.sources.StringStartsWith;

/** Converts the conditions of a query, all of which must hold, to limits of a read. */
final class Conditions {
    private enum Kind { EQUAL, ABOVE, FROM, BELOW, UP_TO }

    private record Condition(Kind kind, String column, Object value) {}

    private Conditions() {}

    static Narrowing narrowed(Narrowing before, Filter[] filters) {
        Narrowing found = before;
        for (Filter filter : filters) {
            found = found.and(narrowed(filter));
        }
        return found;
    }

    /** Returns the conditions that limit a read, for Spark's plans. */
    static Filter[] usable(Filter[] filters) {
        return Arrays.stream(filters)
                .filter(one -> !Narrowing.NONE.equals(narrowed(one)))
                .toArray(Filter[]::new);
    }

    private static Narrowing narrowed(Filter filter) {
        if (filter instanceof And both) {
            return narrowed(both.left()).and(narrowed(both.right()));
        } else if (filter instanceof Or either) {
            return narrowed(either.left()).or(narrowed(either.right()));
        } else if (filter instanceof In one) {
            return among(one.attribute(), one.values());
        } else if (filter instanceof StringStartsWith one) {
            return one.attribute().equals(Columns.SUBJECT) && !one.value().isEmpty()
                    ? Narrowing.NONE.ofSubjects(Items.beginningWith(one.value()))
                    : Narrowing.NONE;
        }
        Condition one = condition(filter);
        return one == null ? Narrowing.NONE : narrowed(one);
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

    private static Narrowing narrowed(Condition one) {
        return switch (one.column()) {
            case Columns.OFFSET -> one.value() instanceof Long offset
                    ? byOffset(Narrowing.NONE, one.kind(), offset)
                    : Narrowing.NONE;
            case Columns.TIMESTAMP -> byTime(Narrowing.NONE, one.kind(), one.value());
            case Columns.SUBJECT, Columns.KEY -> one.kind() == Kind.EQUAL
                    ? among(one.column(), new Object[] {one.value()})
                    : Narrowing.NONE;
            default -> Narrowing.NONE;
        };
    }

    /**
     * Returns limits for the records whose column equals one of these values. Null equals nothing.
     */
    private static Narrowing among(String column, Object[] values) {
        Object[] given = Arrays.stream(values).filter(Objects::nonNull).toArray();
        boolean areSubjects = column.equals(Columns.SUBJECT)
                && Arrays.stream(given).allMatch(
                        one -> one instanceof String text && Subjects.isLiteral(text));
        boolean areKeys = column.equals(Columns.KEY)
                && Arrays.stream(given).allMatch(byte[].class::isInstance);
        if (given.length == 0) {
            return Narrowing.NONE;
        } else if (areSubjects) {
            return Narrowing.NONE.ofSubjects(Items.of(Arrays.stream(given)
                    .map(one -> ((String) one).getBytes(StandardCharsets.UTF_8)).toList()));
        } else if (areKeys) {
            return Narrowing.NONE.ofKeys(
                    Items.of(Arrays.stream(given).map(byte[].class::cast).toList()));
        } else if (column.equals(Columns.OFFSET) || column.equals(Columns.TIMESTAMP)) {
            return Arrays.stream(given)
                    .map(one -> narrowed(new Condition(Kind.EQUAL, column, one)))
                    .reduce(Narrowing::or).get();
        }
        return Narrowing.NONE;
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
