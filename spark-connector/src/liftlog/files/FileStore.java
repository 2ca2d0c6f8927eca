package liftlog.files;

import java.io.Closeable;
import java.io.EOFException;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/** Files of this host, or of a file system that Hadoop supports. */
public interface FileStore {
    /** A file that is open for reading. It stays readable after it was deleted. */
    interface Opened extends Closeable {
        long size() throws IOException;

        /** Returns the best number of bytes for one read, if all bytes are wanted. */
        int bestRead();

        /**
         * Returns the largest gap, in bytes, between two wanted parts for which one read of both
         * parts is faster than two reads.
         */
        int worthReading();

        /** Reads {@code length} bytes at {@code position}; fewer only at the end of the file. */
        int read(long position, byte[] into, int at, int length) throws IOException;
    }

    /** Opens a file for reading. Throws FileNotFoundException. */
    Opened open(String path) throws IOException;

    boolean isFile(String path) throws IOException;

    boolean isDirectory(String path) throws IOException;

    /** Reads a small file completely. Throws FileNotFoundException. */
    default byte[] readAll(String path) throws IOException {
        try (Opened file = open(path)) {
            byte[] bytes = new byte[Math.toIntExact(file.size())];
            if (file.read(0, bytes, 0, bytes.length) < bytes.length) {
                throw new EOFException(path + " became shorter while it was read");
            }
            return bytes;
        }
    }

    /** Returns the files of this host, unless the path has another scheme than {@code file}. */
    static FileStore of(String path, Configuration hadoop) {
        return path.matches("[A-Za-z][A-Za-z0-9+.-]+://.*") && !path.startsWith("file:")
                ? new Hadoop(hadoop)
                : new Local();
    }

    /**
     * Files of this host, read without Hadoop, which would look for a checksum file beside each
     * file.
     */
    final class Local implements FileStore {
        @Override
        public Opened open(String path) throws IOException {
            try {
                FileChannel channel = FileChannel.open(Paths.get(path), StandardOpenOption.READ);
                return new LocalFile(channel);
            } catch (NoSuchFileException error) {
                throw (IOException) new FileNotFoundException(path).initCause(error);
            }
        }

        @Override
        public boolean isFile(String path) {
            return Files.isRegularFile(Paths.get(path));
        }

        @Override
        public boolean isDirectory(String path) {
            return Files.isDirectory(Paths.get(path));
        }
    }

    /**
     * Reads by position. The file is not mapped into memory: a mapping is not faster, and if the
     * file is truncated, an access to a mapped page kills the JVM.
     */
    record LocalFile(FileChannel channel) implements Opened {
        /**
         * Returns a number of bytes that stay in the processor's cache until they are checked and
         * decoded.
         */
        @Override
        public int bestRead() {
            return 256 << 10;
        }

        /**
         * Returns the number of bytes that can be read and checked in the time of one additional
         * read.
         */
        @Override
        public int worthReading() {
            return 4 << 10;
        }

        @Override
        public long size() throws IOException {
            return channel.size();
        }

        @Override
        public int read(long position, byte[] into, int at, int length) throws IOException {
            ByteBuffer target = ByteBuffer.wrap(into, at, length);
            while (target.hasRemaining()) {
                int count = channel.read(target, position + (target.position() - at));
                if (count < 0) {
                    break;
                }
            }
            return target.position() - at;
        }

        @Override
        public void close() throws IOException {
            channel.close();
        }
    }

    /** Files in a file system of Hadoop, such as hdfs or s3a. */
    record Hadoop(Configuration settings) implements FileStore {
        @Override
        public Opened open(String path) throws IOException {
            Path place = new Path(path);
            FileSystem files = place.getFileSystem(settings);
            return new HadoopFile(files.open(place), files.getFileStatus(place).getLen());
        }

        @Override
        public boolean isFile(String path) throws IOException {
            FileStatus found = status(path);
            return found != null && found.isFile();
        }

        @Override
        public boolean isDirectory(String path) throws IOException {
            FileStatus found = status(path);
            return found != null && found.isDirectory();
        }

        private FileStatus status(String path) throws IOException {
            Path place = new Path(path);
            try {
                return place.getFileSystem(settings).getFileStatus(place);
            } catch (FileNotFoundException error) {
                return null;
            }
        }
    }

    /** A file of Hadoop. */
    record HadoopFile(FSDataInputStream stream, long size) implements Opened {
        /** Returns a large number, because each read can be a request. */
        @Override
        public int bestRead() {
            return 1 << 20;
        }

        @Override
        public int worthReading() {
            return 1 << 20;
        }

        @Override
        public int read(long position, byte[] into, int at, int length) throws IOException {
            int wanted = (int) Math.max(0, Math.min(length, size - position));
            stream.readFully(position, into, at, wanted);
            return wanted;
        }

        @Override
        public void close() throws IOException {
            stream.close();
        }
    }
}
