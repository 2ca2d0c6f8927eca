package liftlog.scan;

import java.io.Serializable;
import java.net.URI;
import java.net.URISyntaxException;
import java.util.Arrays;
import java.util.List;
import liftlog.records.Failure;

/**
 * The address of a daemon. {@code path} is set for a Unix socket; {@code host} and {@code port} are
 * set for TCP and TLS.
 */
public record Address(String text, String host, int port, String path, boolean tls)
        implements Serializable {

    public static final int DEFAULT_PORT = 9292;
    private static final String USE = "use host:port, tls://host:port or unix:///path";

    /**
     * Parses the option {@code server}: the addresses of one daemon, or of the nodes of a cluster,
     * separated by commas.
     */
    static List<Address> parseAll(String given) {
        if (given == null) {
            return List.of(parse(null));
        }
        return Arrays.stream(given.split(",", -1)).map(String::trim).map(Address::parse).distinct()
                .toList();
    }

    /** Parses one address; null stands for the default. */
    public static Address parse(String given) {
        if (given == null) {
            return parse("127.0.0.1:" + DEFAULT_PORT);
        }
        String text = given.contains("://") || given.startsWith("/") ? given : "tcp://" + given;
        URI parts;
        try {
            parts = new URI(text);
        } catch (URISyntaxException error) {
            throw invalid(text);
        }
        String authority = parts.getRawAuthority();
        if (authority != null && authority.contains("@")) {
            throw Failure.invalid("server: the address of a daemon holds no login", USE);
        }
        boolean bare = parts.getQuery() == null && parts.getFragment() == null;
        String path = parts.getPath() == null ? "" : parts.getPath();
        if (bare && "unix".equals(parts.getScheme()) && authority == null && !path.isEmpty()) {
            return new Address(text, "", 0, path, false);
        }
        boolean tls = "tls".equals(parts.getScheme());
        if (!bare || !tls && !"tcp".equals(parts.getScheme()) || authority == null
                || !path.replace("/", "").isEmpty()) {
            throw invalid(text);
        }
        int colon = authority.lastIndexOf(':');
        boolean hasPort = colon > authority.lastIndexOf(']') && colon < authority.length() - 1;
        String host = colon > authority.lastIndexOf(']') ? authority.substring(0, colon) : authority;
        if (host.isEmpty()) {
            throw invalid(text);
        }
        if (!hasPort) {
            // With a default port, a job on many hosts would fail only when it connects.
            throw Failure.invalid("server='" + given + "' has no port", "write server="
                    + given.replaceAll("[:/]+$", "") + ":" + DEFAULT_PORT
                    + ", with the port of the daemon's pull socket");
        }
        String port = authority.substring(colon + 1);
        if (!port.matches("[0-9]{1,5}") || Integer.parseInt(port) < 1
                || Integer.parseInt(port) > 65535) {
            throw invalid(text);
        }
        String name = host.startsWith("[") ? host.substring(1, host.length() - 1) : host;
        return new Address(text, name, Integer.parseInt(port), "", tls);
    }

    private static Failure invalid(String text) {
        return Failure.invalid("server: '" + text + "' is not the address of a liftlog daemon", USE);
    }
}
