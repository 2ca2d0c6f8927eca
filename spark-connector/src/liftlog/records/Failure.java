package liftlog.records;

import java.util.Set;

/**
 * An error of liftlog. The name is its kind, as in docs/reference/errors.md. The hint tells the
 * user what to do.
 *
 * <p>PySpark shows only the message of an {@code IllegalArgumentException}. It shows most other
 * exceptions with the whole stack of the JVM.
 */
public class Failure extends IllegalArgumentException {
    private static final long serialVersionUID = 1L;

    public static final String CONNECTION_LOST = "CONNECTION_LOST";
    public static final String CORRUPT_BATCH = "CORRUPT_BATCH";
    public static final String CORRUPT_METADATA = "CORRUPT_METADATA";
    public static final String CORRUPT_RANGE = "CORRUPT_RANGE";
    public static final String DISK_FULL = "DISK_FULL";
    public static final String DIVERGED = "DIVERGED";
    public static final String INVALID_ARGUMENT = "INVALID_ARGUMENT";
    public static final String LEASE_GONE = "LEASE_GONE";
    public static final String LIMIT_EXCEEDED = "LIMIT_EXCEEDED";
    public static final String NEWER_FORMAT = "NEWER_FORMAT";
    public static final String NOT_LEADER = "NOT_LEADER";
    public static final String NOT_READY = "NOT_READY";
    public static final String OFFSET_OUT_OF_RANGE = "OFFSET_OUT_OF_RANGE";
    public static final String PROTOCOL_VIOLATION = "PROTOCOL_VIOLATION";
    public static final String SEGMENTS_CHANGED = "SEGMENTS_CHANGED";
    public static final String SHUTTING_DOWN = "SHUTTING_DOWN";
    public static final String STALE_INCARNATION = "STALE_INCARNATION";
    public static final String STORAGE_ERROR = "STORAGE_ERROR";
    public static final String STREAM_NOT_FOUND = "STREAM_NOT_FOUND";
    public static final String UNAUTHENTICATED = "UNAUTHENTICATED";
    public static final String UNKNOWN_REQUEST = "UNKNOWN_REQUEST";
    public static final String UNSUPPORTED_FORMAT = "UNSUPPORTED_FORMAT";
    public static final String UNSUPPORTED_VERSION = "UNSUPPORTED_VERSION";

    private static final Set<String> RETRIABLE = Set.of(
            CONNECTION_LOST, DISK_FULL, NOT_READY, SHUTTING_DOWN, "TIMEOUT", "NATS_UNAVAILABLE",
            NOT_LEADER, "UNKNOWN_EPOCH", "NOT_ENOUGH_REPLICAS", "METADATA_UNAVAILABLE",
            "STREAM_UNAVAILABLE");

    private final String name;
    private final String reason;
    private final String hint;

    public Failure(String name, String reason) {
        this(name, reason, "", null);
    }

    public Failure(String name, String reason, String hint) {
        this(name, reason, hint, null);
    }

    public Failure(String name, String reason, String hint, Throwable cause) {
        super(name + ": " + reason + (hint.isEmpty() ? "" : " (" + hint + ")"), cause);
        this.name = name;
        this.reason = reason;
        this.hint = hint;
    }

    public static Failure invalid(String reason) {
        return new Failure(INVALID_ARGUMENT, reason);
    }

    public static Failure invalid(String reason, String hint) {
        return new Failure(INVALID_ARGUMENT, reason, hint);
    }

    /** The name of the error, such as CORRUPT_RANGE. */
    public String name() {
        return name;
    }

    /** Returns the text of the error, without name and hint. */
    public String reason() {
        return reason;
    }

    public String hint() {
        return hint;
    }

    /** Returns true if the same request may succeed later. */
    public boolean isRetriable() {
        return RETRIABLE.contains(name);
    }

    public boolean is(String other) {
        return name.equals(other);
    }

    /**
     * Replaces the error by an object of a class that every JVM has. Tasks send their errors to the
     * driver, and the thread that receives an error there may have no access to this jar.
     */
    protected final Object writeReplace() {
        RuntimeException plain = new RuntimeException(getMessage());
        plain.setStackTrace(getStackTrace());
        return plain;
    }
}
