package liftlog.scan;

import java.io.Serializable;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.time.format.DateTimeParseException;
import java.util.Locale;
import java.util.regex.Pattern;
import liftlog.records.Failure;

/**
 * The beginning or the end of a read: an end of the stream, an offset, or the first record with a
 * timestamp at or after a time.
 */
public record Position(Kind kind, long number) implements Serializable {
    /** Defines the meaning of {@code number}: nothing, an offset, or microseconds since 1970. */
    public enum Kind { EARLIEST, LATEST, OFFSET, TIME }

    public static final Position EARLIEST = new Position(Kind.EARLIEST, 0);
    public static final Position LATEST = new Position(Kind.LATEST, 0);

    private static final long LATEST_MS = 253_402_300_799_999L; // end of the year 9999
    private static final Pattern ISO = Pattern.compile("(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}"
            + "([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,9})?)?(Z|[+-](0[0-9]|1[0-7]):[0-5][0-9])?)?");

    public boolean is(Kind one) {
        return kind == one;
    }

    /**
     * Parses an option such as {@code startingOffset}. {@code EARLIEST} is allowed only if it is
     * the default.
     */
    static Position parseOffset(String name, String given, Position fallback) {
        String text = given.strip().toLowerCase(Locale.ROOT);
        if (text.matches("[0-9]{1,19}")) {
            try {
                return new Position(Kind.OFFSET, Long.parseLong(text));
            } catch (NumberFormatException error) {
                return new Position(Kind.OFFSET, Long.MAX_VALUE);
            }
        }
        if (text.equals("latest")) {
            return LATEST;
        }
        if (text.equals("earliest") && fallback.is(Kind.EARLIEST)) {
            return EARLIEST;
        }
        throw Failure.invalid(name + "='" + given + "' is not " + (fallback.is(Kind.EARLIEST)
                ? "earliest, latest or an offset" : "latest or an offset"));
    }

    /**
     * Parses a time in ISO 8601 (UTC if it has no zone), or a number of milliseconds since 1970.
     */
    static Position parseTime(String name, String given) {
        String text = given.strip();
        try {
            if (text.matches("[0-9]{9,15}")) {
                long milliseconds = Long.parseLong(text);
                if (milliseconds <= LATEST_MS) {
                    return new Position(Kind.TIME, milliseconds * 1000);
                }
            } else if (ISO.matcher(text).matches()) {
                return new Position(Kind.TIME, microseconds(parse(text.replace(' ', 'T'))));
            }
        } catch (DateTimeParseException error) {
            // For example a day that does not exist in the month.
        }
        throw Failure.invalid(name + "='" + given + "' is not a time",
                "use ISO 8601 such as 2026-01-31T12:00:00Z, or milliseconds since 1970");
    }

    /**
     * Returns the time in microseconds since 1970. For a time outside of this range, returns the
     * nearest possible number.
     */
    public static long microseconds(Instant time) {
        long most = Long.MAX_VALUE / 1_000_000 - 1;
        long seconds = time.getEpochSecond();
        if (Math.abs(seconds) > most) {
            return seconds < 0 ? Long.MIN_VALUE : Long.MAX_VALUE;
        }
        return seconds * 1_000_000 + time.getNano() / 1000;
    }

    // Driver and executors can have different time zones, so a time without a zone is not local
    // time.
    private static Instant parse(String text) {
        if (!text.contains("T")) {
            return LocalDate.parse(text).atStartOfDay().toInstant(ZoneOffset.UTC);
        }
        String time = text.substring(text.indexOf('T'));
        boolean hasZone = time.endsWith("Z") || time.contains("+") || time.contains("-");
        return hasZone
                ? OffsetDateTime.parse(text).toInstant()
                : LocalDateTime.parse(text).toInstant(ZoneOffset.UTC);
    }
}
