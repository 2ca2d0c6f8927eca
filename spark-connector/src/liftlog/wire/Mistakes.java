package liftlog.wire;

import java.io.IOException;
import java.net.UnknownHostException;
import java.nio.charset.StandardCharsets;
import java.security.cert.CertPathBuilderException;
import java.security.cert.CertificateException;
import java.security.cert.CertificateExpiredException;
import java.security.cert.CertificateNotYetValidException;
import java.util.Map;
import javax.net.ssl.SSLException;
import liftlog.records.Failure;
import liftlog.scan.Address;

/**
 * Explains failed connections: no daemon answers, or another program answers. Also gives the
 * remedy.
 */
final class Mistakes {
    private static final String HTTP = "HTTP";
    private static final Map<String, String> KNOWN = Map.ofEntries(
            Map.entry("HTTP", HTTP), Map.entry("GET ", HTTP), Map.entry("POST", HTTP),
            Map.entry("HEAD", HTTP), Map.entry("PUT ", HTTP), Map.entry("DELE", HTTP),
            Map.entry("OPTI", HTTP), Map.entry("PRI ", HTTP),
            Map.entry("INFO", "NATS"), Map.entry("-ERR", "NATS"), Map.entry("CONN", "NATS"),
            Map.entry("SSH-", "SSH"));
    private static final Map<String, String> HINTS = Map.of(
            HTTP, "give the address of the pull port (pull.listen, usually 9292), not of http.listen",
            "NATS", "give the address of the daemon's pull port, not of the NATS server",
            "SSH", "check host and port",
            "TLS", "use tls:// on a port that speaks TLS, and tcp:// on one that does not");

    private Mistakes() {}

    /** An error that another attempt would repeat. */
    private static final class Refused extends Failure {
        private static final long serialVersionUID = 1L;

        Refused(String reason, String hint, IOException cause) {
            super(CONNECTION_LOST, reason, hint, cause);
        }

        @Override
        public boolean isRetriable() {
            return false;
        }
    }

    static Failure unreachable(Address address, IOException error) {
        String hint = "check that the daemon runs and listens there";
        String reason = reason(error);
        boolean isRefused = false;
        Throwable cause = error;
        while (cause.getCause() != null && cause.getCause() != cause) {
            cause = cause.getCause();
        }
        if (error instanceof UnknownHostException) {
            reason = "the name of the host is not known";
            hint = "check the name";
        } else if (cause instanceof CertificateException
                || cause instanceof CertPathBuilderException) {
            isRefused = true;
            reason = "the certificate is not accepted: " + cause.getMessage();
            hint = aboutCertificate(cause);
        } else if (error instanceof SSLException
                && String.valueOf(error.getMessage()).contains("unrecognized SSL message")) {
            isRefused = true;
            hint = "there may be no TLS at this address: try tcp://";
        }
        reason = "cannot connect to " + address.text() + ": " + reason;
        return isRefused
                ? new Refused(reason, hint, error)
                : new Failure(Failure.CONNECTION_LOST, reason, hint, error);
    }

    private static String aboutCertificate(Throwable wrong) {
        if (wrong instanceof CertPathBuilderException) {
            return "give the CA that signed the daemon's certificate as tlsCaFile";
        }
        if (wrong instanceof CertificateExpiredException) {
            return "give the daemon a new certificate and a HUP, unless the clock of this machine is"
                    + " wrong";
        }
        return wrong instanceof CertificateNotYetValidException
                ? "the clock of this machine may be wrong: the daemon's certificate begins later"
                : "connect by a name or address that the daemon's certificate is for";
    }

    /** Throws Failure if the first four bytes of a peer belong to another known protocol. */
    static void checkProtocol(byte[] first) {
        boolean isTls = (first[0] == 0x15 || first[0] == 0x16) && first[1] == 3 && first[2] <= 4;
        String found = isTls ? "TLS" : KNOWN.get(new String(first, StandardCharsets.ISO_8859_1));
        if (found != null) {
            throw new Failure(Failure.PROTOCOL_VIOLATION,
                    "what the server sends looks like " + found + ", not like the pull protocol",
                    HINTS.get(found));
        }
    }

    static String reason(IOException error) {
        return error.getMessage() == null ? error.getClass().getSimpleName() : error.getMessage();
    }
}
