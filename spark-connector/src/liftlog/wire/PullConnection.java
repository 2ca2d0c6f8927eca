package liftlog.wire;

import java.io.Closeable;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.security.SecureRandom;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import javax.net.ssl.SSLContext;
import liftlog.records.CorruptRange;
import liftlog.records.Failure;
import liftlog.scan.Address;
import liftlog.scan.OutOfRange;

/**
 * One connection to a daemon, after the login. One thread sends and receives its frames. While one
 * request is answered, at most one other request, a fetch, can be open.
 */
final class PullConnection implements Closeable {
    private static final int CONNECT_MS = 10_000;
    private static final int READ_MS = 60_000; // longer than the longest wait of a fetch
    private static final int MOST_MAP = 16 << 20;
    private static final int MOST_BODY = 256 << 20;
    private static final int VERSION = 1;
    private static final String SOFTWARE = "liftlog-spark";

    /** A frame. Its body, of {@code bodyLength} bytes, follows in the stream. */
    record Answer(Map<String, Object> map, int bodyLength) {
        String text(String key) {
            return (String) map.get(key);
        }

        long number(String key) {
            return map.get(key) instanceof Long found ? found : 0;
        }
    }

    private final Address address;
    private final Dialing.Line line;
    private final InputStream in;
    private final byte[] prefix = new byte[4];
    private byte[] map = new byte[4096];
    private boolean hasAnswered;
    private long lastId;
    private Answer kept;
    private byte[] keptBody;

    private PullConnection(Address address, Dialing.Line line) {
        this.address = address;
        this.line = line;
        this.in = line.in();
    }

    /**
     * Connects and logs in. Throws Failure; the name is CONNECTION_LOST if the daemon cannot be
     * reached.
     */
    static PullConnection open(Address address, SSLContext tls, Credentials credentials) {
        Dialing.Line line;
        try {
            line = Dialing.dial(address, tls, CONNECT_MS, READ_MS);
        } catch (IOException error) {
            throw Mistakes.unreachable(address, error);
        }
        PullConnection connection = new PullConnection(address, line);
        try {
            connection.logIn(credentials);
            return connection;
        } catch (RuntimeException error) {
            connection.close();
            throw error;
        }
    }

    private void logIn(Credentials credentials) {
        byte[] nonce = new byte[32];
        new SecureRandom().nextBytes(nonce);
        long hello = send("hello", fields("v", List.of(VERSION), "n", nonce, "c", SOFTWARE));
        Answer challenge = expect(hello, "challenge");
        Map<String, Object> proof = credentials.proof(challenge.map(), nonce, line.certificate());
        expect(send("auth", proof), "welcome");
    }

    /** Makes the map of a request. Keys without a value are not sent. */
    static Map<String, Object> fields(Object... pairs) {
        Map<String, Object> found = new LinkedHashMap<>();
        for (int i = 0; i < pairs.length; i += 2) {
            found.put((String) pairs[i], pairs[i + 1]);
        }
        return found;
    }

    /** Sends a request and returns its id. */
    long send(String kind, Map<String, Object> request) {
        Map<String, Object> whole = fields("k", kind, "i", ++lastId);
        whole.putAll(request);
        byte[] bytes = Msgpack.encode(whole);
        byte[] frame = ByteBuffer.allocate(4 + bytes.length)
                .order(ByteOrder.LITTLE_ENDIAN).putInt(bytes.length).put(bytes).array();
        try {
            line.out().write(frame);
            line.out().flush();
        } catch (IOException error) {
            throw lost(error);
        }
        return lastId;
    }

    /**
     * Returns the answer of this kind to a request, without a body. An answer to a fetch that
     * arrives before it is kept.
     */
    Answer expect(long id, String kind) {
        while (true) {
            Answer answer = readFrame();
            if (answer.number("i") == id || answer.number("i") == 0) {
                return checked(answer, kind);
            }
            byte[] body = new byte[answer.bodyLength()];
            readFully(body, body.length);
            kept = answer;
            keptBody = body;
        }
    }

    /**
     * Returns the head of the answer to a fetch. The caller must read its body next. Throws the
     * error of the fetch.
     */
    Answer expectData(long id) {
        while (true) {
            Answer answer = kept != null ? kept : readFrame();
            if (answer.number("i") == id || answer.number("i") == 0) {
                if (kept != null) {
                    kept = null;
                } else {
                    keptBody = null;
                }
                return checked(answer, "data");
            }
            skipBody(answer); // of a fetch that was cancelled
        }
    }

    /** Reads the body of this answer. */
    void readBody(byte[] into, int length) {
        if (keptBody != null) {
            System.arraycopy(keptBody, 0, into, 0, length);
            keptBody = null;
        } else {
            readFully(into, length);
        }
    }

    private void skipBody(Answer answer) {
        if (kept == null) {
            byte[] body = new byte[answer.bodyLength()];
            readFully(body, body.length);
        }
        kept = null;
        keptBody = null;
    }

    private Answer readFrame() {
        readFully(prefix, prefix.length);
        if (!hasAnswered) {
            Mistakes.checkProtocol(prefix);
            hasAnswered = true;
        }
        int length = ByteBuffer.wrap(prefix).order(ByteOrder.LITTLE_ENDIAN).getInt();
        if (length < 0 || length > MOST_MAP) {
            throw new Failure(Failure.PROTOCOL_VIOLATION, "the server sent a frame that is too long");
        }
        if (map.length < length) {
            map = new byte[length];
        }
        readFully(map, length);
        Map<String, Object> found = Msgpack.decode(map, length);
        long body = found.get("b") instanceof Long bytes ? bytes : 0;
        if (body < 0 || body > MOST_BODY) {
            throw new Failure(Failure.PROTOCOL_VIOLATION, "the server sent a body that is too long");
        }
        return new Answer(found, (int) body);
    }

    private void readFully(byte[] into, int length) {
        try {
            int done = 0;
            while (done < length) {
                int count = in.read(into, done, length - done);
                if (count < 0) {
                    throw new EOFException("the daemon closed it");
                }
                done += count;
            }
        } catch (IOException error) {
            throw lost(error);
        }
    }

    private Failure lost(IOException error) {
        return new Failure(Failure.CONNECTION_LOST,
                "the connection to " + address.text() + " is lost: " + Mistakes.reason(error),
                "check that a liftlog daemon listens there", error);
    }

    private static Answer checked(Answer answer, String kind) {
        String found = answer.text("k");
        if (kind.equals(found)) {
            return answer;
        }
        if (!"error".equals(found)) {
            throw new Failure(Failure.PROTOCOL_VIOLATION,
                    "the server answered with " + found + " and not with " + kind);
        }
        String name = String.valueOf(answer.text("n"));
        String message = String.valueOf(answer.text("m"));
        String hint = answer.text("h") == null ? "" : answer.text("h");
        Map<?, ?> details = answer.map().get("d") instanceof Map<?, ?> given ? given : Map.of();
        if (name.equals(Failure.OFFSET_OUT_OF_RANGE)) {
            throw new OutOfRange(message, hint, number(details, "log_start_offset"));
        }
        if (name.equals(Failure.CORRUPT_RANGE)) {
            throw new CorruptRange(message, hint,
                    number(details, "first_offset"), number(details, "next_offset"));
        }
        if (name.equals(Failure.NOT_LEADER)) {
            throw new NotLeader(message, hint,
                    details.get("address") instanceof String leader ? leader : null);
        }
        throw new Failure(name, message, hint);
    }

    private static long number(Map<?, ?> map, String key) {
        return map.get(key) instanceof Long found ? found : 0;
    }

    @Override
    public void close() {
        try {
            line.ending().close();
        } catch (IOException error) {
            // An error of the close is ignored, because the connection is no longer used.
        }
    }
}
