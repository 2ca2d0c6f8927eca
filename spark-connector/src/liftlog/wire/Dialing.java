package liftlog.wire;

import java.io.Closeable;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.nio.file.AccessDeniedException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.util.Collection;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLSocket;
import javax.net.ssl.TrustManagerFactory;
import liftlog.records.Failure;
import liftlog.scan.Address;

/**
 * Opens connected streams of bytes: TCP, TLS or a Unix socket. A read fails if no byte arrives
 * within a time limit.
 */
final class Dialing {
    private Dialing() {}

    /**
     * An open connection. {@code ending} closes both directions. {@code certificate} is the
     * daemon's certificate in DER; null without TLS.
     */
    record Line(InputStream in, OutputStream out, Closeable ending, byte[] certificate) {}

    static Line dial(Address address, SSLContext tls, int connectMs, int readMs)
            throws IOException {
        if (!address.path().isEmpty()) {
            return unix(address.path(), readMs);
        }
        Socket socket = connected(address, connectMs);
        try {
            socket.setTcpNoDelay(true);
            socket.setKeepAlive(true);
            socket.setSoTimeout(readMs);
            if (tls == null) {
                return new Line(socket.getInputStream(), socket.getOutputStream(), socket, null);
            }
            SSLSocket secure = (SSLSocket) tls.getSocketFactory()
                    .createSocket(socket, address.host(), address.port(), true);
            SSLParameters parameters = secure.getSSLParameters();
            parameters.setEndpointIdentificationAlgorithm("HTTPS"); // checks the name
            parameters.setProtocols(new String[] {"TLSv1.3", "TLSv1.2"});
            secure.setSSLParameters(parameters);
            secure.startHandshake();
            byte[] certificate = secure.getSession().getPeerCertificates()[0].getEncoded();
            return new Line(secure.getInputStream(), secure.getOutputStream(), secure, certificate);
        } catch (GeneralSecurityException error) {
            socket.close();
            throw new IOException(error.getMessage(), error);
        } catch (IOException error) {
            socket.close();
            throw error;
        }
    }

    /**
     * Returns the context for {@code tls://} addresses; null for other addresses. The file is read
     * once.
     */
    static SSLContext context(Address address, String caFile) {
        if (!address.tls()) {
            if (caFile != null) {
                throw Failure.invalid("tls is given, but '" + address.text() + "' asks for none",
                        "use tls://host:port");
            }
            return null;
        }
        try {
            SSLContext context = SSLContext.getInstance("TLS");
            TrustManagerFactory trust =
                    TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
            trust.init(caFile == null ? null : store(caFile));
            context.init(null, trust.getTrustManagers(), null);
            return context;
        } catch (NoSuchFileException | AccessDeniedException error) {
            throw Failure.invalid("tlsCaFile='" + caFile + "' cannot be read: "
                    + (error instanceof NoSuchFileException ? "no such file" : "no permission"),
                    "every host needs it");
        } catch (GeneralSecurityException | IOException error) {
            throw Failure.invalid(
                    caFile + " holds no CA certificate as PEM: " + error.getMessage());
        }
    }

    private static KeyStore store(String caFile) throws GeneralSecurityException, IOException {
        Collection<? extends Certificate> found;
        try (InputStream file = Files.newInputStream(Path.of(caFile))) {
            found = CertificateFactory.getInstance("X.509").generateCertificates(file);
        }
        if (found.isEmpty()) {
            throw new IOException("it is empty");
        }
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        int number = 0;
        for (Certificate one : found) {
            store.setCertificateEntry("ca" + number++, one);
        }
        return store;
    }

    /**
     * Tries the addresses of a host in turn. An address that never answers leaves time for the
     * others.
     */
    private static Socket connected(Address address, int connectMs) throws IOException {
        InetAddress[] found = InetAddress.getAllByName(address.host());
        IOException failure = new IOException("no address for " + address.host());
        for (InetAddress one : found) {
            Socket socket = new Socket();
            try {
                socket.connect(new InetSocketAddress(one, address.port()),
                        Math.max(1, connectMs / found.length));
                return socket;
            } catch (IOException error) {
                socket.close();
                failure = error;
            }
        }
        throw failure;
    }

    private static Line unix(String path, int readMs) throws IOException {
        SocketChannel channel = SocketChannel.open(StandardProtocolFamily.UNIX);
        try {
            channel.connect(UnixDomainSocketAddress.of(path));
            channel.configureBlocking(false);
            UnixStreams streams = new UnixStreams(channel, readMs);
            return new Line(streams.input(), streams.output(), streams, null);
        } catch (IOException error) {
            channel.close();
            throw error;
        }
    }

    /**
     * A Unix socket as streams. A selector limits the time of reads, because the socket itself has
     * no time limit.
     */
    private static final class UnixStreams implements Closeable {
        private final SocketChannel channel;
        private final Selector selector = Selector.open();
        private final SelectionKey key;
        private final int readMs;

        UnixStreams(SocketChannel channel, int readMs) throws IOException {
            this.channel = channel;
            this.readMs = readMs;
            this.key = channel.register(selector, SelectionKey.OP_READ);
        }

        InputStream input() {
            return new InputStream() {
                @Override
                public int read() throws IOException {
                    byte[] one = new byte[1];
                    if (read(one, 0, 1) < 0) {
                        throw new EOFException();
                    }
                    return one[0] & 0xFF;
                }

                @Override
                public int read(byte[] into, int at, int length) throws IOException {
                    ByteBuffer target = ByteBuffer.wrap(into, at, length);
                    int count = channel.read(target);
                    while (count == 0) {
                        await(SelectionKey.OP_READ);
                        count = channel.read(target);
                    }
                    return count;
                }
            };
        }

        OutputStream output() {
            return new OutputStream() {
                @Override
                public void write(int one) throws IOException {
                    write(new byte[] {(byte) one}, 0, 1);
                }

                @Override
                public void write(byte[] from, int at, int length) throws IOException {
                    ByteBuffer source = ByteBuffer.wrap(from, at, length);
                    while (source.hasRemaining()) {
                        if (channel.write(source) == 0) {
                            await(SelectionKey.OP_WRITE);
                        }
                    }
                }
            };
        }

        private void await(int operation) throws IOException {
            key.interestOps(operation);
            if (selector.select(readMs) == 0) {
                throw new SocketTimeoutException("no answer in " + readMs / 1000 + " seconds");
            }
            selector.selectedKeys().clear();
        }

        @Override
        public void close() throws IOException {
            selector.close();
            channel.close();
        }
    }
}
