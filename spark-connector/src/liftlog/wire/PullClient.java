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
 * Requests to a daemon, on a connection that is opened again when it was lost. One thread.
 *
 * <p>Of a cluster any node may be asked first: one that does not lead the stream names the leader.
 */
final class PullClient implements Closeable {
    private static final Logger LOG = LoggerFactory.getLogger("liftlog.spark");
    private static final int MOST_KNOWN = 64;

    /** How long a request waits for a daemon that went away. */
    static final long READING_MS = 60_000;

    private final List<Address> known;
    private final SSLContext tls;
    private final Credentials credentials;
    private Address address;
    private PullConnection connection;

    /**
     * Connects; {@code patienceMs} is how long it tries while the daemon cannot be reached. Later
     * requests wait for {@code READING_MS}: the daemon was there.
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
                // The daemon may not have noticed yet that old connections are gone.
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

    /** Asks for the nodes of the cluster. An older daemon does not name them. */
    void learn() {
        Map<String, Object> daemon = map(call("metadata", Map.of(), "daemon").map().get("d"));
        for (Object node : list(daemon.get("nodes"))) {
            if (node instanceof String text && !text.isEmpty()) {
                know(Address.parse(text));
            }
        }
    }

    /** The open connection, or a new one. */
    PullConnection connection() {
        if (connection == null) {
            connection = PullConnection.open(address, tls, credentials);
        }
        return connection;
    }

    /** What was asked there has failed: the next connection may be to another node. */
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

    /** Whether the address can be used from now on. A job that asked for TLS never continues without. */
    private boolean know(Address found) {
        if (known.contains(found)) {
            return true;
        }
        if (found.tls() != address.tls() || known.size() >= MOST_KNOWN) {
            return false;
        }
        return known.add(found);
    }

    /** The connection was lost, or what it would answer next is not wanted. */
    void drop() {
        if (connection != null) {
            connection.close();
            connection = null;
        }
    }

    /** The answer to a request that can be repeated without harm. */
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

    /** The answer to a request that is repeated only if another node has refused it. */
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

    /** The answer to a fetch of which only the head counts. */
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

    @SuppressWarnings("unchecked") // maps of frames have keys of text
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
