package liftlog.wire;

import java.io.Closeable;
import java.util.List;
import java.util.Map;
import javax.net.ssl.SSLContext;
import liftlog.records.Failure;
import liftlog.scan.Address;
import liftlog.scan.ScanOptions;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Requests to a daemon, on a connection that is opened again when it was lost. One thread. */
final class PullClient implements Closeable {
    private static final Logger LOG = LoggerFactory.getLogger("liftlog.spark");
    private static final long REQUEST_MS = 30_000;

    private final Address address;
    private final SSLContext tls;
    private final Credentials credentials;
    private final long patienceMs;
    private PullConnection connection;

    /** Connects; {@code patienceMs} is how long it tries while the daemon cannot be reached. */
    PullClient(ScanOptions options, long patienceMs) {
        this.address = options.server();
        this.tls = Dialing.context(address, options.tlsCaFile());
        this.credentials = Credentials.of(options);
        this.patienceMs = patienceMs;
        Backoff backoff = new Backoff(patienceMs);
        while (connection == null) {
            try {
                connection = PullConnection.open(address, tls, credentials);
            } catch (Failure error) {
                // The daemon may not have noticed yet that old connections are gone.
                if (!error.isRetriable() && !error.is(Failure.LIMIT_EXCEEDED)) {
                    throw error;
                }
                backoff.pauseAfter(error);
                LOG.warn("connecting-again address={} reason={}", address.text(), error.reason());
            }
        }
    }

    String address() {
        return address.text();
    }

    long patienceMs() {
        return patienceMs;
    }

    /** The open connection, or a new one. */
    PullConnection connection() {
        if (connection == null) {
            connection = PullConnection.open(address, tls, credentials);
        }
        return connection;
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
        Backoff backoff = new Backoff(REQUEST_MS);
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

    /** The answer to a request that is not repeated. */
    PullConnection.Answer callOnce(String kind, Map<String, Object> request, String answer) {
        try {
            PullConnection open = connection();
            return open.expect(open.send(kind, request), answer);
        } catch (Failure error) {
            if (Backoff.isInterruption(error)) {
                drop();
            }
            throw error;
        }
    }

    /** The answer to a fetch of which only the head counts. */
    PullConnection.Answer look(Map<String, Object> fetch) {
        Backoff backoff = new Backoff(REQUEST_MS);
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
                drop();
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
