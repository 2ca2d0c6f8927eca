package liftlog.wire;

import static liftlog.wire.PullConnection.fields;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import liftlog.records.Failure;
import liftlog.records.RecordBatch;
import liftlog.scan.Address;
import liftlog.scan.BatchSource;
import liftlog.scan.Columns;
import liftlog.scan.Extent;
import liftlog.scan.Items;
import liftlog.scan.Losses;
import liftlog.scan.Narrowing;
import liftlog.scan.OutOfRange;
import liftlog.scan.ScanOptions;
import liftlog.scan.ScanRange;
import liftlog.scan.StreamState;
import liftlog.scan.Subjects;
import liftlog.scan.Transport;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Reads batches from a daemon's pull socket, over one connection. */
public final class DaemonTransport implements Transport {
    /**
     * Time limit, in ms, for the first connection during planning, because the address may be
     * wrong.
     */
    public static final long PLANNING_MS = 10_000;

    /**
     * Time, in ms, for which a task waits for an unreachable daemon. The daemon was reachable when
     * the job was planned.
     */
    public static final long READING_MS = PullClient.READING_MS;

    /** Interval at which a running query requests the nodes of the cluster. */
    private static final long LEARN_EVERY_NS = TimeUnit.MINUTES.toNanos(1);

    private static final Logger LOG = LoggerFactory.getLogger("liftlog.spark");
    private static final String HOLDER = "spark";
    private static final int MOST_KEY = 65_535;
    private static final int MOST_SUBJECT = 1024;
    private static final int MOST_KEYS = 1024; // maximum in one fetch
    private static final int MOST_SUBJECTS = 64;
    private static final int MOST_QUESTIONS = 16; // requests for extents
    private static final int FEW = 4; // divisor: bytes of a stream per byte read

    private final String stream;
    private final ScanOptions options;
    private final Map<String, Object> filter = new LinkedHashMap<>();
    private final List<String> subjects;
    private final PullClient client;
    private Map<String, Object> lease; // until `held` passes it to the tasks
    private boolean isCompacted;
    private long learnAt = System.nanoTime();
    private Map<String, Object> compaction = Map.of();

    public DaemonTransport(ScanOptions options, long patienceMs) {
        stream = options.stream();
        this.options = options;
        // With a filter the daemon has to read, select and encode records. Without a filter it
        // sends the stored bytes, and planning has left out everything that its sketches exclude.
        // So the daemon filters only if the job requests it, or if it finds the records on a
        // subject with little work.
        subjects = patterns(options);
        if (options.filterInDaemon()) {
            List<byte[]> keys = keys(options.narrowing().keys(), MOST_KEYS);
            if (keys != null) {
                filter.put("fk", keys);
            }
            if (subjects != null) {
                filter.put("fs", subjects);
            }
        }
        client = new PullClient(options, patienceMs);
    }

    @Override
    public List<Address> nodes() {
        return client.nodes();
    }

    @Override
    public StreamState state() {
        if (System.nanoTime() - learnAt >= 0) {
            client.learn();
            learnAt = System.nanoTime() + LEARN_EVERY_NS;
        }
        Map<String, Object> info = describe();
        compaction = PullClient.map(info.get("compaction"));
        Map<String, Object> settings =
                PullClient.map(PullClient.map(info.get("settings")).get("compaction"));
        isCompacted = PullClient.map(info.get("settings")).get("compaction") instanceof Map
                && settings.get("enabled") != Boolean.FALSE;
        long start = PullClient.number(info, "log_start_offset");
        long end = PullClient.number(info, "log_end_offset");
        return new StreamState(
                stream,
                (String) info.get("incarnation"),
                PullClient.number(info, "leader_epoch"),
                start,
                PullClient.number(info, "high_watermark"),
                end > start
                        ? List.of(new Extent(start, end, PullClient.number(info, "size_bytes")))
                        : List.of());
    }

    @Override
    public long offsetAt(long timestampNs) {
        return client.look(fields("s", stream, "t", timestampNs, "m", 1)).number("o");
    }

    @Override
    public void checkHistory(long offset, long leaderEpoch) {
        try {
            client.look(fields("s", stream, "o", offset, "m", 1, "e", leaderEpoch));
        } catch (Failure error) {
            boolean isLoss = error.is(Failure.CORRUPT_RANGE) || error.is(Failure.OFFSET_OUT_OF_RANGE);
            if (!isLoss) { // the tasks that read these records report the losses
                throw error;
            }
        }
    }

    @Override
    public StreamState hold(StreamState state, Long first) {
        try {
            lease = PullClient.map(client.callOnce("lease", fields(
                    "s", stream, "o", first == null ? "earliest" : first,
                    "t", 1000L * options.leaseSeconds(), "h", HOLDER, "x", state.identity()), "leased")
                    .map().get("d"));
        } catch (Failure error) {
            boolean isRefused = error.is(Failure.DISK_FULL) || error.is(Failure.LIMIT_EXCEEDED);
            if (isCompacted || !isRefused) {
                throw error;
            }
            // No lease: the read fails with an error if retention removes its records meanwhile.
            LOG.warn("read-without-lease stream={} error={}", stream, error.getMessage());
            return state;
        }
        // Compaction removes a record if a newer one below the end of the lease supersedes it. So
        // the read has to include the records up to that end.
        long end = PullClient.number(lease, "high");
        long low = first == null ? PullClient.number(lease, "low") : 0;
        List<Extent> extents = new ArrayList<>(state.extents());
        if (!extents.isEmpty()) {
            Extent last = extents.remove(extents.size() - 1);
            extents.add(new Extent(last.first(), Math.max(last.next(), end), last.sizeBytes()));
        }
        return new StreamState(stream, state.identity(), state.leaderEpoch(),
                Math.max(state.logStart(), low), end, extents);
    }

    @Override
    public StreamState measure(StreamState state, long first, long end, long stepBytes) {
        if (first >= end) {
            return state;
        }
        try {
            return state.withExtents(
                    extents(fields("s", stream, "o", first, "z", stepBytes)));
        } catch (Failure error) {
            if (error.is(Failure.UNKNOWN_REQUEST)) { // an older daemon
                return state;
            }
            throw error;
        }
    }

    /**
     * Like {@code measure} with sizes of 0. A daemon sends whole batches. It is asked about one
     * subject and one key at a time.
     */
    @Override
    public StreamState find(
            StreamState state, long first, long end, long stepBytes, Narrowing wanted,
            boolean inParts) {
        List<String> subjects = wanted.subjects() == null || !wanted.subjects().prefixes().isEmpty()
                ? null
                : texts(wanted.subjects().whole(), MOST_QUESTIONS);
        List<byte[]> keys = keys(wanted.keys(), MOST_QUESTIONS);
        if (subjects != null && keys != null && subjects.size() * keys.size() > MOST_QUESTIONS) {
            subjects = null;
        }
        List<Extent> found = null;
        try {
            for (byte[] key : keys == null ? Collections.<byte[]>singletonList(null) : keys) {
                for (String subject : subjects == null
                        ? Collections.<String>singletonList(null)
                        : subjects) {
                    List<Extent> more = find(first, end, fields("s", stream, "z", stepBytes,
                            "fb", Math.max(0, wanted.notBeforeNs()),
                            "fa", Math.max(0, wanted.notAfterNs()), "fs", subject, "fk", key));
                    found = found == null ? more : Extent.either(found, more);
                }
            }
        } catch (Failure error) {
            if (error.is(Failure.UNKNOWN_REQUEST)) { // an older daemon
                return state;
            }
            throw error;
        }
        boolean isLeftOut = inParts && this.subjects != null && filter.isEmpty();
        return state.withExtents(isLeftOut ? lessened(found) : found);
    }

    /**
     * Returns smaller sizes, for a daemon that leaves out other subjects: it reads only the heads
     * of batches and a few values.
     */
    private static List<Extent> lessened(List<Extent> found) {
        return found.stream()
                .map(one -> one.sizeBytes() == 0 ? one : new Extent(
                        one.first(), one.next(), Math.max(1, one.sizeBytes() / FEW)))
                .toList();
    }

    private List<Extent> find(long first, long end, Map<String, Object> question) {
        List<Extent> found = new ArrayList<>();
        long reached = first;
        while (reached < end) {
            question.put("o", reached);
            long before = reached;
            for (Extent one : extents(question)) {
                if (one.next() > reached) { // the first segment may be known already
                    found.add(new Extent(
                            Math.max(one.first(), reached), one.next(), one.sizeBytes()));
                    reached = one.next();
                }
            }
            if (reached == before) {
                break; // offsets without an answer are read
            }
        }
        return found;
    }

    /**
     * Returns the keys to send; null if they cannot be sent. No record has a longer key, and a
     * daemon refuses longer keys. The tasks find that such a key matches nothing.
     */
    private static List<byte[]> keys(Items wanted, int most) {
        boolean areTaken = wanted != null && wanted.whole().size() <= most
                && wanted.whole().stream().allMatch(one -> one.length <= MOST_KEY);
        return areTaken ? wanted.whole() : null;
    }

    /**
     * Returns the patterns of the condition on subjects, or else the option's pattern; null if they
     * cannot be sent.
     */
    private static List<String> patterns(ScanOptions options) {
        Items wanted = options.narrowing().subjects();
        List<String> found = null;
        // A prefix can be written as a pattern only if it ends at the end of a token.
        if (wanted != null && wanted.prefixes().stream().allMatch(one -> one[one.length - 1] == '.')) {
            List<byte[]> all = new ArrayList<>(wanted.whole());
            for (byte[] prefix : wanted.prefixes()) {
                byte[] pattern = Arrays.copyOf(prefix, prefix.length + 1);
                pattern[prefix.length] = '>';
                all.add(pattern);
            }
            found = texts(all, MOST_SUBJECTS);
        }
        boolean isOption = found == null && options.subject() != null;
        return isOption
                ? texts(List.of(options.subject().getBytes(StandardCharsets.UTF_8)), MOST_SUBJECTS)
                : found;
    }

    /**
     * Returns the subjects or patterns if every daemon accepts them. A daemon uses another version
     * of Unicode, and may refuse text that is valid here. The tasks select records, too.
     */
    private static List<String> texts(List<byte[]> given, int most) {
        List<String> texts = given.stream()
                .map(one -> new String(one, StandardCharsets.UTF_8)).distinct().toList();
        boolean areTaken = texts.size() <= most && texts.stream().allMatch(
                one -> one.length() <= MOST_SUBJECT && Subjects.whyInvalid(one) == null
                        && one.chars().allMatch(letter -> letter > ' ' && letter <= '~'));
        return areTaken ? texts : null;
    }

    /** Each piece costs a request, which takes as long as sending this number of bytes. */
    @Override
    public long worthReading() {
        return 1 << 20;
    }

    private List<Extent> extents(Map<String, Object> request) {
        Map<String, Object> found = client.call("extents", request, "measured").map();
        // An older daemon does not select records. Its size 0 has no meaning.
        long least = found.get("q") == Boolean.TRUE ? 0 : 1;
        List<?> offsets = PullClient.list(found.get("o"));
        List<?> sizes = PullClient.list(found.get("z"));
        List<Extent> extents = new ArrayList<>();
        for (int i = 0; i + 1 < offsets.size() && i < sizes.size(); i++) {
            extents.add(new Extent(
                    (Long) offsets.get(i), (Long) offsets.get(i + 1),
                    Math.max(least, (Long) sizes.get(i))));
        }
        return extents;
    }

    @Override
    public List<ScanRange> held(List<ScanRange> planned) {
        long cleanedBelow = isCompacted ? -1 : PullClient.number(compaction, "cleaned_below");
        boolean isLeased = lease != null && !planned.isEmpty();
        String id = isLeased ? (String) lease.get("lease_id") : null;
        ScanRange.Mark mark = isLeased && isCompacted
                ? new ScanRange.Mark(PullClient.number(lease, "high"),
                        PullClient.number(compaction, "tombstones_removed_below"))
                : null;
        List<ScanRange> found = new ArrayList<>();
        for (ScanRange one : planned) {
            found.add(one.with(new ScanRange.Guard(
                    null, id, found.size(), planned.size(), mark, cleanedBelow)));
        }
        if (isLeased) {
            lease = null;
        }
        return found;
    }

    @Override
    public BatchSource batches(
            ScanRange range, Set<String> columns, Losses losses, boolean isLast,
            boolean selects) {
        // Values are most of the bytes of a record. Without them, little is left to send.
        BatchSource source = new Pieces(
                range, columns.contains(Columns.VALUE) ? null : List.copyOf(columns), losses);
        TaskLease share = range.guard().leaseId() == null
                ? null
                : new TaskLease(client, range, options.leaseSeconds(), () -> mayGoOn(range.guard()));
        return new Guarded(source, share, range.guard(), isLast);
    }

    /** Yields the batches of the pieces of a range, one piece after the other. */
    private final class Pieces implements BatchSource {
        private final ScanRange range;
        private final List<String> columns;
        private final Losses losses;
        private int piece;
        private FetchSource open;

        Pieces(ScanRange range, List<String> columns, Losses losses) {
            this.range = range;
            this.columns = columns;
            this.losses = losses;
        }

        @Override
        public boolean next(RecordBatch into) {
            while (true) {
                if (open == null) {
                    if (piece == range.pieces().size()) {
                        return false;
                    }
                    ScanRange part = range.only(range.pieces().get(piece++));
                    open = new FetchSource(client, part, losses, filter, columns, subjects);
                }
                if (open.next(into)) {
                    return true;
                }
                close();
            }
        }

        @Override
        public void close() {
            if (open != null) {
                open.close();
                open = null;
            }
        }
    }

    /**
     * Yields batches under a lease. After the last batch it checks that compaction has not changed
     * the result.
     */
    private final class Guarded implements BatchSource {
        private final BatchSource source;
        private final TaskLease share;
        private final ScanRange.Guard guard;
        private final boolean isLast;
        private boolean isOver;

        Guarded(BatchSource source, TaskLease share, ScanRange.Guard guard, boolean isLast) {
            this.source = source;
            this.share = share;
            this.guard = guard;
            this.isLast = isLast;
        }

        @Override
        public boolean next(RecordBatch into) {
            if (share != null && !isOver) {
                share.renewIfDue();
            }
            if (!isOver && source.next(into)) {
                return true;
            }
            if (!isOver) {
                isOver = true;
                if (guard.cleanedBelow() >= 0) {
                    checkNotCompacted(guard.cleanedBelow());
                }
                if (share != null) {
                    share.renew(isLast);
                }
            }
            return false;
        }

        @Override
        public void stop() {
            if (share != null && !isOver) {
                isOver = true;
                source.close(); // its next answer is not needed
                share.stop();
            }
        }

        @Override
        public void close() {
            source.close();
        }
    }

    private void checkNotCompacted(long cleanedBelow) {
        Map<String, Object> found = PullClient.map(describe().get("compaction"));
        boolean isOff = found.getOrDefault("state", "off").equals("off");
        if (!isOff || PullClient.number(found, "cleaned_below") > cleanedBelow) {
            throw new Failure(Failure.SEGMENTS_CHANGED, "'" + stream + "' was compacted since the"
                    + " read was planned: the newest value of a key may have moved beyond the end"
                    + " of the read", "read again");
        }
    }

    private boolean mayGoOn(ScanRange.Guard guard) {
        if (guard.mark() == null) { // only retention matters, which the daemon reports
            return guard.cleanedBelow() >= 0;
        }
        Map<String, Object> found = PullClient.map(describe().get("compaction"));
        return PullClient.number(found, "cleaned_below") <= guard.mark().end()
                && PullClient.number(found, "tombstones_removed_below")
                        == guard.mark().tombstonesRemovedBelow();
    }

    private Map<String, Object> describe() {
        try {
            return PullClient.map(
                    client.call("describe", fields("s", stream), "stream").map().get("d"));
        } catch (Failure error) {
            if (!error.is(Failure.STREAM_NOT_FOUND)) {
                throw error;
            }
            throw new Failure(Failure.STREAM_NOT_FOUND, client.address() + " has no stream '"
                    + stream + "' that you may read", "`liftlog stream ls` lists the streams");
        }
    }

    @Override
    public void close() {
        try {
            if (lease != null) { // no task uses the lease
                client.callOnce("release",
                        fields("s", stream, "l", lease.get("lease_id")), "done");
            }
        } catch (Failure error) {
            LOG.warn("lease-not-released stream={} error={}", stream, error.getMessage());
        } finally {
            lease = null;
            client.close();
        }
    }
}
