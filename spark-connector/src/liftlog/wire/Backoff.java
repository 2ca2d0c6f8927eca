package liftlog.wire;

import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import liftlog.records.Failure;

/**
 * Pauses between attempts to reach a daemon. The pauses double up to a limit, and have a random
 * part, so that the clients of a stopped daemon do not all reconnect at once. No attempt begins
 * after the given time.
 */
final class Backoff {
    private static final long FIRST_MS = 50;
    private static final long LONGEST_MS = 5_000;

    private final long patienceMs;
    private long ceiling = FIRST_MS;
    private long deadline;

    Backoff(long patienceMs) {
        this.patienceMs = patienceMs;
        reset();
    }

    /** Restarts the time limit, because the daemon has answered. */
    void reset() {
        ceiling = FIRST_MS;
        deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(patienceMs);
    }

    /**
     * Waits before the next attempt. Throws {@code error}, the error of the last attempt, if there
     * is no time for another one.
     */
    void pauseAfter(Failure error) {
        long pause = ThreadLocalRandom.current().nextLong(ceiling / 2, ceiling + 1);
        ceiling = Math.min(2 * ceiling, LONGEST_MS);
        if (System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(pause) >= deadline) {
            throw error;
        }
        try {
            Thread.sleep(pause);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt(); // Spark ends the task
            throw error;
        }
    }

    /**
     * Returns true if the same request may succeed on another connection, possibly to another node.
     */
    static boolean isInterruption(Failure error) {
        return error.is(Failure.CONNECTION_LOST)
                || error.is(Failure.SHUTTING_DOWN)
                || error.is(Failure.NOT_LEADER)
                || error.is(Failure.NOT_READY);
    }
}
