package liftlog.wire;

import static liftlog.wire.PullConnection.fields;

import java.util.List;
import java.util.Map;
import liftlog.records.BatchHeader;
import liftlog.records.CorruptBatch;
import liftlog.records.CorruptRange;
import liftlog.records.Epochs;
import liftlog.records.Failure;
import liftlog.records.Place;
import liftlog.records.RecordBatch;
import liftlog.scan.BatchSource;
import liftlog.scan.Losses;
import liftlog.scan.OutOfRange;
import liftlog.scan.ScanRange;

/**
 * Reads the batches of a range from a daemon. The next fetch is sent before the body of the last
 * answer is read, so that the daemon works on it at the same time. A lost connection interrupts a
 * read. The read then continues after the last batch, on a new connection.
 *
 * <p>If no values are wanted, the read requests only the wanted columns. The daemon then checks
 * whole batches and sends small parts of them. This costs the daemon work for each batch, so small
 * batches are requested as they are stored. Now and then a read requests stored batches to
 * determine their size.
 *
 * <p>If few subjects are wanted, the daemon may leave out other records. If this would cost more
 * work, it sends batches as they are stored. After that, the read does not request a selection for
 * a while.
 *
 * <p>The batches of an answer cover the offsets in its head without gaps. If the header of a batch
 * is damaged, the read requests this offset again, because the daemon has an index.
 */
final class FetchSource implements BatchSource {
    private static final long FETCH_BYTES = 1 << 20;
    private static final long FIRST_BYTES = FETCH_BYTES / 2;
    private static final long WAIT_MS = 20_000;
    private static final long NONE = -1;
    private static final int LARGE_BATCH = 16 << 10;
    private static final int WHOLE_AFTER = 32; // number of answers without a selection
    private static final int LOOK_EVERY = 16; // number of answers, of up to 16 MiB each

    private final PullClient client;
    private final ScanRange range;
    private final Losses losses;
    private final Map<String, Object> filter;
    private final List<String> columns;
    private final List<String> subjects;
    private final Backoff backoff;
    private long asked = NONE; // the offset of the next fetch
    private long fetchId = NONE;
    private long fetchBytes = FIRST_BYTES;
    private long waitMs;
    private String incarnation;
    private long epoch;
    private long suspect = NONE;
    private boolean areLarge; // true if the stored batches are large
    private int sinceLook;
    private boolean isLeavingOut; // the last fetch lets the daemon leave out subjects
    private int sinceWhole = WHOLE_AFTER; // answers since the daemon last sent all subjects
    // The present answer:
    private byte[] body = new byte[(int) FETCH_BYTES];
    private int length;
    private int position;
    private Place place;
    private long firstWanted;
    private long answerEnd;
    private boolean isMade; // batches were made for this fetch
    private int batches;

    /**
     * If {@code columns} is null, all columns are read. If {@code subjects} is null, records on all
     * subjects are read. Otherwise records on other subjects may still be among the shown ones.
     */
    FetchSource(PullClient client, ScanRange range, Losses losses, Map<String, Object> filter,
            List<String> columns, List<String> subjects) {
        this.client = client;
        this.range = range;
        this.losses = losses;
        this.filter = filter;
        this.columns = columns;
        this.subjects = subjects;
        this.backoff = new Backoff(PullClient.READING_MS);
        this.asked = range.first();
        this.incarnation = range.identity();
        this.epoch = range.leaderEpoch();
    }

    @Override
    public boolean next(RecordBatch into) {
        while (true) {
            if (place != null) {
                if (nextOfAnswer(into)) {
                    return true;
                }
                continue; // the answer has ended, or the read begins elsewhere
            }
            if (asked >= range.end()) {
                return false;
            }
            takeAnswer();
        }
    }

    @Override
    public void close() {
        if (fetchId != NONE) {
            client.drop(); // its answer is not wanted
            fetchId = NONE;
        }
    }

    // --- answers ---

    private void takeAnswer() {
        try {
            PullConnection connection = client.connection();
            if (fetchId == NONE) {
                ask(connection);
            }
            long id = fetchId;
            fetchId = NONE;
            PullConnection.Answer head = connection.expectData(id);
            begin(head);
            if (asked < range.end()) {
                ask(connection);
            }
            connection.readBody(body, length);
            backoff.reset();
        } catch (CorruptRange error) {
            if (error.next() <= error.first()) {
                throw new Failure(Failure.PROTOCOL_VIOLATION,
                        "the server sent a damaged range that ends where it begins");
            }
            losses.damaged(error);
            beginAt(error.next());
        } catch (OutOfRange error) {
            if (error.logStart() <= asked) {
                throw error;
            }
            losses.removed(asked, Math.min(error.logStart(), range.end()));
            beginAt(error.logStart());
        } catch (Failure error) {
            if (!Backoff.isInterruption(error)) {
                throw error;
            }
            resume(error);
        }
    }

    private void ask(PullConnection connection) {
        Map<String, Object> fetch = fields("s", range.stream(), "o", asked, "m", fetchBytes,
                "c", Math.max(range.end() - asked, 1), "w", waitMs, "x", incarnation, "e", epoch);
        fetch.putAll(filter);
        if (columns != null && (!filter.isEmpty() || areLarge && ++sinceLook % LOOK_EVERY != 0)) {
            fetch.put("p", columns);
        }
        isLeavingOut = subjects != null && filter.isEmpty() && !fetch.containsKey("p")
                && sinceWhole >= WHOLE_AFTER;
        if (isLeavingOut) {
            fetch.put("fo", subjects);
        }
        fetchId = connection.send("fetch", fetch);
        fetchBytes = Math.min(Math.max(2 * fetchBytes, 4096), FETCH_BYTES);
        waitMs = WAIT_MS;
    }

    private void begin(PullConnection.Answer head) {
        long next = head.number("n");
        long from = head.number("o");
        length = head.bodyLength();
        if (length > 0 && next <= from || next < from) {
            throw new Failure(Failure.PROTOCOL_VIOLATION,
                    "the server sent records but did not advance the next offset");
        }
        isMade = head.map().get("q") == Boolean.TRUE;
        sinceWhole = isLeavingOut && !isMade ? 0 : sinceWhole + 1;
        areLarge |= isMade;
        if (!filter.isEmpty() && !isMade) {
            throw new Failure(Failure.UNSUPPORTED_VERSION, "the daemon is too old to filter",
                    "upgrade it, or read without a condition on key and without filterInDaemon");
        }
        incarnation = head.text("x");
        epoch = head.number("e");
        asked = next;
        if (body.length < length) {
            body = new byte[length + length / 4];
        }
        if (suspect == from) {
            long following = length > 0 ? head.number("f") : next;
            if (following > suspect) { // the daemon has found the damage meanwhile
                suspect = NONE;
                losses.damaged(failing(from, following));
            }
        }
        place = new Place(head.number("f"), next, Epochs.NONE);
        firstWanted = Math.max(from, head.number("l"));
        answerEnd = next;
        position = 0;
        batches = 0;
        if (length == 0) {
            place = null;
        }
    }

    /** Continues after the last batch that was shown, because the connection was lost. */
    private void resume(Failure error) {
        client.leave(error);
        fetchId = NONE;
        if (place != null) { // the rest of the body is lost
            asked = reached();
            place = null;
        }
        suspect = NONE;
        fetchBytes = FIRST_BYTES;
        backoff.pauseAfter(error);
    }

    private void beginAt(long offset) {
        close();
        place = null;
        asked = offset;
        fetchBytes = FIRST_BYTES;
    }

    // --- batches ---

    /** Returns the offset after all shown and skipped records. */
    private long reached() {
        return Math.max(place.offset(), firstWanted);
    }

    /**
     * Shows the next batch of the answer. Returns false if there is none, or if the read begins at
     * another offset.
     */
    private boolean nextOfAnswer(RecordBatch into) {
        while (position < length) {
            BatchHeader header = null;
            try {
                header = headerHere();
                header.checkBody(body, position, length);
                into.load(body, position, header);
            } catch (CorruptBatch error) {
                if (reached() >= range.end()) {
                    place = null;
                    return false;
                }
                if (header == null || position + header.length() > length) {
                    askAbout(reached());
                    return false;
                }
                passDamaged(header);
                continue;
            }
            position += header.length();
            batches++;
            place.passBy(header);
            into.trim(firstWanted, range.end());
            if (into.first() < into.last()) {
                return true;
            }
        }
        if (reached() < answerEnd && reached() < range.end()) {
            askAbout(reached()); // the last batch ends before the answer
        } else {
            areLarge = isMade || length >= LARGE_BATCH * (long) batches;
            place = null;
        }
        return false;
    }

    private BatchHeader headerHere() throws CorruptBatch {
        BatchHeader header = BatchHeader.parse(body, position, length);
        if (!place.holds(header)) {
            throw new CorruptBatch("another batch is due");
        }
        return header;
    }

    private void passDamaged(BatchHeader header) {
        long from = reached();
        position += header.length();
        place.passBy(header);
        if (header.nextOffset() > from) {
            losses.damaged(failing(from, header.nextOffset()));
        }
    }

    /** Requests only the batch at an offset from the daemon, because its header is damaged. */
    private void askAbout(long offset) {
        long end = answerEnd;
        if (suspect != offset) {
            suspect = offset;
            beginAt(offset);
            fetchBytes = 1;
            return;
        }
        // The daemon's batch is good, so the batch was damaged during the transfer.
        suspect = NONE;
        long following = Math.max(end, offset + 1);
        losses.damaged(failing(offset, following));
        beginAt(following);
    }

    private CorruptRange failing(long first, long next) {
        return new CorruptRange("the records [" + first + ", " + next + ") of '" + range.stream()
                + "' fail their checksum", "", first, next);
    }
}
