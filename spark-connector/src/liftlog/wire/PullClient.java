package liftlog.wire;

import java.io.Closeable;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import javax.net.ssl.SSLContext;
import liftlog.records.Failure;
import liftlog.scan.Address;
import liftlog.scan.ScanOptions;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Sends requests to a daemon. A lost connection is replaced by a new one. Not thread-safe.
 *
 * <p>In a cluster, the first request can go to any node. A node that does not lead the stream names
 * the leader.
 */
final class PullClient implements Closeable {
    private static final Logger LOG = LoggerFactory.getLogger("liftlog.spark");
    private static final int MOST_KNOWN = 64;

    /** Time, in ms, for which a request waits for an unreachable daemon. */
    static final long READING_MS = 60_000;

    private final List<Address> known;
    private final SSLContext tls;
    private final Credentials credentials;
    private Address address;
    private PullConnection connection;

    /**
     * Connects. If the daemon cannot be reached, retries for {@code patienceMs}. Later requests
     * retry for {@code READING_MS}, because the daemon was reachable.
     */
    PullClient(ScanOptions options, long patienceMs) {
        this.known = new ArrayList<>(options.servers());
        this.address = known.get(0);
        this.tls = Dialing.context(address, options.tlsCaFile());
        if (known.stream().anyMatch(one -> one.tls() != address.tls())) {
            throw Failure.invalid("server: either all nodes have tls:// addresses or none");
        }
        this.credentials = Credentials.of(options);
        Backoff backoff = new Backoff(patienceMs);
        while (connection == null) {
            try {
                connection();
            } catch (Failure error) {
                // The daemon may not have detected yet that old connections are closed.
                if (!error.isRetriable() && !error.is(Failure.LIMIT_EXCEEDED)) {
                    throw error;
                }
                backoff.pauseAfter(error);
                LOG.warn("connecting-again address={} reason={}", address.text(), error.reason());
                leave(error);
            }
        }
    }

    String address() {
        return address.text();
    }

    List<Address> nodes() {
        return List.copyOf(known);
    }

    /** Requests the nodes of the cluster. An older daemon does not report them. */
    void learn() {
        Map<String, Object> daemon = map(call("metadata", Map.of(), "daemon").map().get("d"));
        for (Object node : list(daemon.get("nodes"))) {
            if (node instanceof String text && !text.isEmpty()) {
                know(Address.parse(text));
            }
        }
    }

    /** Returns the open connection, or opens a new one. */
    PullConnection connection() {
        if (connection == null) {
            connection = PullConnection.open(address, tls, credentials);
        }
        return connection;
    }

    /** Closes the connection after a failed request. The next connection may be to another node. */
    void leave(Failure error) {
        drop();
        if (error instanceof NotLeader refused) {
            follow(refused.address());
        } else if (!error.is(Failure.NOT_READY)) {
            next();
        }
    }

    private void next() {
        address = known.get((known.indexOf(address) + 1) % known.size());
    }

    private void follow(String leader) {
        Address found = leader == null ? null : Address.parse(leader);
        if (found == null || found.equals(address) || !know(found)) {
            next();
            return;
        }
        address = found;
    }

    /**
     * Returns true if the address can be used from now on. A job that uses TLS never continues
     * without TLS.
     */
    private boolean know(Address found) {
        if (known.contains(found)) {
            return true;
        }
        if (found.tls() != address.tls() || known.size() >= MOST_KNOWN) {
            return false;
        }
        return known.add(found);
    }

    /** Closes the connection, because it was lost, or because its next answer is not needed. */
    void drop() {
        if (connection != null) {
            connection.close();
            connection = null;
        }
    }

    /** Sends a request that can be repeated without harm, and returns its answer. */
    PullConnection.Answer call(String kind, Map<String, Object> request, String answer) {
        Backoff backoff = new Backoff(READING_MS);
        while (true) {
            try {
                return callOnce(kind, request, answer);
            } catch (Failure error) {
                if (!Backoff.isInterruption(error)) {
                    throw error;
                }
                backoff.pauseAfter(error);
            }
        }
    }

    /**
     * Sends a request and returns its answer. The request is repeated only if another node has
     * refused it.
     */
    PullConnection.Answer callOnce(String kind, Map<String, Object> request, String answer) {
        Backoff backoff = new Backoff(READING_MS);
        while (true) {
            try {
                PullConnection open = connection();
                return open.expect(open.send(kind, request), answer);
            } catch (Failure error) {
                if (Backoff.isInterruption(error)) {
                    leave(error);
                }
                if (!error.is(Failure.NOT_LEADER)) {
                    throw error;
                }
                backoff.pauseAfter(error);
            }
        }
    }

    /** Sends a fetch of which only the head of the answer is needed. */
    PullConnection.Answer look(Map<String, Object> fetch) {
        Backoff backoff = new Backoff(READING_MS);
        while (true) {
            try {
                PullConnection open = connection();
                PullConnection.Answer answer = open.expectData(open.send("fetch", fetch));
                open.readBody(new byte[answer.bodyLength()], answer.bodyLength());
                return answer;
            } catch (Failure error) {
                if (!Backoff.isInterruption(error)) {
                    throw error;
                }
                leave(error);
                backoff.pauseAfter(error);
            }
        }
    }

    @SuppressWarnings("unchecked") // maps of frames have text keys
    static Map<String, Object> map(Object value) {
        return value instanceof Map<?, ?> found ? (Map<String, Object>) found : Map.of();
    }

    static long number(Map<String, Object> map, String key) {
        return map.get(key) instanceof Long found ? found : 0;
    }

    static List<?> list(Object value) {
        return value instanceof List<?> found ? found : List.of();
    }

    @Override
    public void close() {
        drop();
    }
}
