package liftlog.wire;

import static liftlog.wire.PullConnection.fields;

import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import liftlog.records.Failure;
import liftlog.scan.ScanRange;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The share of one task in the lease of a read. The task renews the lease while it reads, and once
 * more after its last record; this renewal reports that its part is done. If the lease has ended
 * early, the read is still complete if compaction and retention have not changed its range.
 */
final class TaskLease {
    /**
     * Interval of the renewals. If a stream has no lease left, the daemon may end a lease that no
     * reader has renewed for three times this interval.
     */
    private static final long REPORT_NS = TimeUnit.SECONDS.toNanos(5);

    private static final Logger LOG = LoggerFactory.getLogger("liftlog.spark");

    private final PullClient client;
    private final ScanRange range;
    private final int seconds;
    private final BooleanSupplier mayGoOn;
    private boolean isBegun;
    private boolean isGone;
    private long renewAt;

    TaskLease(PullClient client, ScanRange range, int seconds, BooleanSupplier mayGoOn) {
        this.client = client;
        this.range = range;
        this.seconds = seconds;
        this.mayGoOn = mayGoOn;
    }

    void renewIfDue() {
        if (System.nanoTime() >= renewAt) {
            renew(false);
        }
    }

    /**
     * Reports that this part needs no more records. The daemon may end a lease that no other part
     * uses.
     */
    void stop() {
        if (isGone || !isBegun) {
            return;
        }
        ScanRange.Guard guard = range.guard();
        try {
            client.callOnce("renew", fields("s", range.stream(), "l", guard.leaseId(),
                    "t", 1000L * seconds, "p", guard.part(), "n", guard.parts(), "e", true),
                    "leased");
        } catch (Failure error) {
            LOG.warn("lease-not-ended stream={} error={}", range.stream(), error.getMessage());
        }
    }

    /** Renews the lease. Throws LEASE_GONE. */
    void renew(boolean isFinished) {
        renewAt = System.nanoTime() + Math.min(TimeUnit.SECONDS.toNanos(seconds) / 3, REPORT_NS);
        ScanRange.Guard guard = range.guard();
        try {
            if (!isGone) {
                Map<String, Object> request = fields("s", range.stream(), "l", guard.leaseId(),
                        "t", 1000L * seconds,
                        "p", isFinished ? guard.part() : null,
                        "n", isFinished ? guard.parts() : null,
                        "g", isBegun ? null : guard.part());
                client.call("renew", request, "leased");
                isBegun = true;
                return;
            }
        } catch (Failure error) {
            if (!error.is(Failure.LEASE_GONE)) {
                throw error;
            }
            isGone = true;
        }
        if (!mayGoOn.getAsBoolean()) {
            throw new Failure(Failure.LEASE_GONE, "the lease on '" + range.stream()
                    + "' ended before everything was read: compaction may have removed records that"
                    + " the read needs", "read again, with a new DataFrame; if tasks wait longer than"
                    + " that for an executor, raise leaseSeconds (now " + seconds + ")");
        }
    }
}
