package liftlog.scan;

import java.io.Serializable;
import java.math.BigDecimal;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import liftlog.records.Failure;

/**
 * The options of a read. All of them are checked before the read begins. They are the options of
 * the Python source. {@code path} is null if the read uses a daemon.
 */
public record ScanOptions(
        String stream,
        List<Address> servers,
        String path,
        Position start,
        Position end,
        String subject,
        List<String> columns,
        boolean compact,
        long targetPartitionBytes,
        Long maxOffsetsPerTrigger,
        Long maxBytesPerTrigger,
        boolean failOnDataLoss,
        int leaseSeconds,
        String tokenFile,
        String nkeyFile,
        String tlsCaFile,
        boolean pushdown,
        boolean filterInDaemon,
        Narrowing narrowing)
        implements Serializable {

    private static final List<String> NAMES = List.of(
            "stream", "server", "path", "startingOffset", "endingOffset", "startTimestamp",
            "endTimestamp", "subject", "columns", "compact", "includeHeaders", "rowsPerBatch",
            "targetPartitionBytes", "maxOffsetsPerTrigger", "maxBytesPerTrigger", "failOnDataLoss",
            "leaseSeconds", "tokenFile", "nkeyFile", "tlsCaFile", "pushdown", "filterInDaemon");

    private static final String SQL_HINT =
            "in SQL, use CREATE TEMPORARY VIEW <view> USING liftlog OPTIONS (stream '<name>')";
    private static final long PARTITION_BYTES = 128L << 20;
    private static final long COMPACT_PARTITION_BYTES = 256L << 20;
    private static final int LEASE_SECONDS = 60; // short, because plans that never run have a lease
    private static final int MOST_LEASE_SECONDS = 3600;
    private static final String STREAM_NAME = "[A-Za-z0-9][A-Za-z0-9_-]{0,127}|_[A-Za-z0-9_-]{1,127}";
    private static final Pattern SIZE =
            Pattern.compile("([0-9]{1,20}(?:\\.[0-9]{1,9})?) ?([A-Za-z]*)");
    private static final Map<String, Long> UNITS = Map.of(
            "", 1L, "b", 1L, "kb", 1_000L, "mb", 1_000_000L, "gb", 1_000_000_000L,
            "tb", 1_000_000_000_000L, "kib", 1L << 10, "mib", 1L << 20, "gib", 1L << 30,
            "tib", 1L << 40);

    /**
     * Parses the options. Throws Failure INVALID_ARGUMENT; its text names the option and the valid
     * values.
     */
    public static ScanOptions parse(Map<String, String> given, boolean streaming) {
        Map<String, String> values = known(given);
        String path = values.get("path");
        if (path != null && values.containsKey("server")) {
            throw Failure.invalid("server and path='" + path + "' exclude each other",
                    "name the stream with the option stream, and do not pass it to load()");
        }
        if (values.containsKey("tokenFile") && values.containsKey("nkeyFile")) {
            throw Failure.invalid("tokenFile and nkeyFile exclude each other");
        }
        boolean compact = flag(values, "compact", false);
        boolean pushdown = flag(values, "pushdown", !compact);
        if (compact && pushdown) {
            throw Failure.invalid("compact and pushdown exclude each other: conditions apply to what"
                    + " compact keeps",
                    "select the records to compact with options such as subject and endingOffset");
        }
        if (streaming) {
            checkStreaming(values, compact);
        }
        count(values, "rowsPerBatch"); // only checked: batches are those of the log
        Long target = size(values, "targetPartitionBytes");
        Long lease = count(values, "leaseSeconds");
        if (lease != null && lease > MOST_LEASE_SECONDS) {
            throw Failure.invalid("leaseSeconds=" + lease + " is longer than a lease can last, "
                    + MOST_LEASE_SECONDS,
                    "tasks renew it, so it only has to outlast their wait for an executor");
        }
        return new ScanOptions(
                stream(values, path),
                Address.parseAll(values.get("server")),
                path,
                position(values, "startingOffset", "startTimestamp", Position.EARLIEST),
                position(values, "endingOffset", "endTimestamp", Position.LATEST),
                pattern(values.get("subject")),
                Columns.parse(values.get("columns"), flag(values, "includeHeaders", false)),
                compact,
                target != null ? target : compact ? COMPACT_PARTITION_BYTES : PARTITION_BYTES,
                count(values, "maxOffsetsPerTrigger"),
                size(values, "maxBytesPerTrigger"),
                flag(values, "failOnDataLoss", true),
                lease == null ? LEASE_SECONDS : lease.intValue(),
                values.get("tokenFile"),
                values.get("nkeyFile"),
                values.get("tlsCaFile"),
                pushdown,
                flag(values, "filterInDaemon", false),
                Narrowing.NONE);
    }

    /**
     * Parses only the columns. When Spark requests the schema, it is unknown whether the read is a
     * batch or a stream.
     */
    public static List<String> columnsOf(Map<String, String> given) {
        Map<String, String> values = known(given);
        return Columns.parse(values.get("columns"), flag(values, "includeHeaders", false));
    }

    public ScanOptions narrowed(Narrowing other) {
        return new ScanOptions(stream, servers, path, start, end, subject, columns, compact,
                targetPartitionBytes, maxOffsetsPerTrigger, maxBytesPerTrigger, failOnDataLoss,
                leaseSeconds, tokenFile, nkeyFile, tlsCaFile, pushdown, filterInDaemon, other);
    }

    /** Returns the same options for tasks that can use any of these nodes. */
    public ScanOptions at(List<Address> nodes) {
        return nodes.isEmpty() ? this : new ScanOptions(
                stream, nodes, path, start, end, subject, columns, compact, targetPartitionBytes,
                maxOffsetsPerTrigger, maxBytesPerTrigger, failOnDataLoss, leaseSeconds,
                tokenFile, nkeyFile, tlsCaFile, pushdown, filterInDaemon,
                narrowing);
    }

    /** Returns limits for the records that can become rows in a batch read. */
    public Narrowing wanted() {
        return narrowing.subjects() == null && subject != null && Subjects.isLiteral(subject)
                ? narrowing.ofSubjects(Items.of(subject))
                : narrowing;
    }

    private static Map<String, String> known(Map<String, String> given) {
        if (given.keySet().stream().anyMatch(ScanOptions::isOfCatalog)) {
            throw Failure.invalid("CREATE TABLE ... USING liftlog does not work: it would store the"
                    + " options in a catalog", SQL_HINT);
        }
        Map<String, String> values = new HashMap<>();
        for (Map.Entry<String, String> one : given.entrySet()) {
            String name = one.getKey();
            String found = null;
            for (String known : NAMES) {
                found = known.equalsIgnoreCase(name) ? known : found;
            }
            if (found == null && name.equalsIgnoreCase("token")) {
                throw Failure.invalid("a token cannot be an option: options are part of every task"
                        + " and shown in plans", "write it to a file that driver and executors can"
                        + " read, and give the path as tokenFile");
            }
            if (found == null) {
                throw Failure.invalid("there is no option '" + name + "'"
                        + Columns.didYouMean(name, NAMES),
                        "the options are " + String.join(", ", NAMES));
            }
            values.put(found, one.getValue());
        }
        return values;
    }

    /**
     * Returns true for the options that Spark adds for a table of a catalog: the properties of the
     * table, and its options under other names.
     */
    private static boolean isOfCatalog(String name) {
        return name.startsWith("option.") || name.equals("owner") || name.equals("provider");
    }

    private static void checkStreaming(Map<String, String> values, boolean compact) {
        if (compact) {
            throw Failure.invalid("compact makes no sense for readStream: the record that is now the"
                    + " newest of its key can be superseded in the next micro-batch",
                    "write to a sink that keeps the newest offset per key, or read a batch");
        }
        for (String name : List.of("endingOffset", "endTimestamp")) {
            if (values.containsKey(name)) {
                throw Failure.invalid(name + " makes no sense for readStream, which has no end",
                        "use .trigger(availableNow=True) to stop at what is there now");
            }
        }
    }

    private static String stream(Map<String, String> values, String path) {
        String name = values.get("stream");
        if (name == null && path == null) {
            throw Failure.invalid("which stream is to be read?",
                    "add .option(\"stream\", \"<name>\"); " + SQL_HINT
                            + ": CREATE TABLE passes no options on");
        }
        if (name == null) {
            String trimmed = path.replaceAll("/+$", "");
            return trimmed.substring(trimmed.lastIndexOf('/') + 1);
        }
        if (path == null && !name.matches(STREAM_NAME)) {
            throw Failure.invalid("'" + name + "' is not a stream name",
                    "1 to 128 letters (A-Z, a-z), digits, '_' or '-', the first a letter or digit");
        }
        return name;
    }

    private static Position position(
            Map<String, String> values, String offsetName, String timeName, Position fallback) {
        String offset = values.get(offsetName);
        String time = values.get(timeName);
        if (offset != null && time != null) {
            throw Failure.invalid(offsetName + " and " + timeName + " exclude each other");
        }
        if (time != null) {
            return Position.parseTime(timeName, time);
        }
        return offset == null ? fallback : Position.parseOffset(offsetName, offset, fallback);
    }

    private static String pattern(String text) {
        String wrong = text == null ? null : Subjects.whyInvalid(text);
        if (wrong != null) {
            throw Failure.invalid("subject='" + text + "' is not a subject pattern: " + wrong);
        }
        return text;
    }

    private static boolean flag(Map<String, String> values, String name, boolean fallback) {
        String text = values.get(name);
        if (text == null) {
            return fallback;
        }
        String value = text.strip().toLowerCase(Locale.ROOT);
        if (!value.equals("true") && !value.equals("false")) {
            throw Failure.invalid(name + "='" + text + "' is neither true nor false");
        }
        return value.equals("true");
    }

    private static Long count(Map<String, String> values, String name) {
        String text = values.get(name);
        if (text == null) {
            return null;
        }
        if (!text.strip().matches("[0-9]{1,18}") || Long.parseLong(text.strip()) == 0) {
            throw Failure.invalid(name + "='" + text + "' is not a number above 0");
        }
        return Long.parseLong(text.strip());
    }

    private static Long size(Map<String, String> values, String name) {
        String text = values.get(name);
        if (text == null) {
            return null;
        }
        Matcher parts = SIZE.matcher(text.strip());
        Long unit = parts.matches() ? UNITS.get(parts.group(2).toLowerCase(Locale.ROOT)) : null;
        BigDecimal bytes = unit == null
                ? BigDecimal.ZERO
                : new BigDecimal(parts.group(1)).multiply(BigDecimal.valueOf(unit));
        if (bytes.compareTo(BigDecimal.ONE) < 0
                || bytes.compareTo(BigDecimal.valueOf(1L << 62)) > 0) {
            throw Failure.invalid(name + "='" + text + "' is not a size",
                    "use bytes, or a unit as in 64MiB");
        }
        return bytes.longValue();
    }
}
