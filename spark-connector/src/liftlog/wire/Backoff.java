package liftlog.wire;

import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import liftlog.records.Failure;

/**
 * Pauses between attempts to reach a daemon: they double up to a bound, and are random, so that the
 * clients of a daemon that went away do not all return at once. An attempt that would begin after
 * the given time is not made.
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

    /** The daemon has answered: the time begins again. */
    void reset() {
        ceiling = FIRST_MS;
        deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(patienceMs);
    }

    /** Waits before the next attempt; throws the error of the last one if there is none. */
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

    /** Whether the same may succeed on another connection, perhaps to another node. */
    static boolean isInterruption(Failure error) {
        return error.is(Failure.CONNECTION_LOST)
                || error.is(Failure.SHUTTING_DOWN)
                || error.is(Failure.NOT_LEADER)
                || error.is(Failure.NOT_READY);
    }
}
