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

/** Files of this host, or of a file system that Hadoop knows. */
public interface FileStore {
    /** A file that is open for reading; it stays readable after it was deleted. */
    interface Opened extends Closeable {
        long size() throws IOException;

        /** How many bytes are best read at once, when all are wanted. */
        int bestRead();

        /** How many bytes between two that are wanted are rather read than skipped. */
        int worthReading();

        /** Up to {@code length} bytes at {@code position}; fewer only at the end of the file. */
        int read(long position, byte[] into, int at, int length) throws IOException;
    }

    /** Throws FileNotFoundException. */
    Opened open(String path) throws IOException;

    boolean isFile(String path) throws IOException;

    boolean isDirectory(String path) throws IOException;

    /** All bytes of a small file. Throws FileNotFoundException. */
    default byte[] readAll(String path) throws IOException {
        try (Opened file = open(path)) {
            byte[] bytes = new byte[Math.toIntExact(file.size())];
            if (file.read(0, bytes, 0, bytes.length) < bytes.length) {
                throw new EOFException(path + " became shorter while it was read");
            }
            return bytes;
        }
    }

    /** The files of this host, unless the path names another scheme than {@code file}. */
    static FileStore of(String path, Configuration hadoop) {
        return path.matches("[A-Za-z][A-Za-z0-9+.-]+://.*") && !path.startsWith("file:")
                ? new Hadoop(hadoop)
                : new Local();
    }

    /** Without Hadoop, which would look for a checksum file beside each file. */
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

    /** Read with positions, never mapped: that is no faster, and a mapped file that is cut kills the JVM. */
    record LocalFile(FileChannel channel) implements Opened {
        /** They stay in the cache of the processor until they are checked and decoded. */
        @Override
        public int bestRead() {
            return 256 << 10;
        }

        /** A read takes as long as so many bytes and their checksum. */
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

    /** Through Hadoop's file systems: hdfs, s3a and so on. */
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
        /** Each read can be a request. */
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
