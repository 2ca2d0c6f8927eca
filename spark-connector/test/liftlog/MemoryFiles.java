package liftlog;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import liftlog.files.FileStore;

/** Files in memory. They count the bytes that are read, and can have unreadable pages. */
public final class MemoryFiles implements FileStore {
    private static final int PAGE = 4096;

    private final Map<String, byte[]> files = new TreeMap<>();
    private final Map<String, Set<Long>> unreadable = new TreeMap<>();
    private final Map<String, Long> read = new TreeMap<>();
    private String words = "Input/output error";

    public void put(String path, byte[] bytes) {
        files.put(path, bytes);
    }

    public byte[] get(String path) {
        return files.get(path);
    }

    public void remove(String path) {
        files.remove(path);
    }

    /** Makes a page of a file unreadable from now on. The error has this text. */
    public void breakPage(String path, long page, String words) {
        unreadable.computeIfAbsent(path, one -> new HashSet<>()).add(page);
        this.words = words;
    }

    /** Returns the number of bytes of a file that were read. */
    public long bytesRead(String path) {
        return read.getOrDefault(path, 0L);
    }

    @Override
    public Opened open(String path) throws IOException {
        byte[] bytes = files.get(path);
        if (bytes == null) {
            throw new FileNotFoundException(path);
        }
        return new MemoryFile(path, bytes);
    }

    @Override
    public boolean isFile(String path) {
        return files.containsKey(path);
    }

    @Override
    public boolean isDirectory(String path) {
        return files.keySet().stream().anyMatch(one -> one.startsWith(path + "/"));
    }

    private final class MemoryFile implements Opened {
        private final String path;
        private final byte[] bytes;

        MemoryFile(String path, byte[] bytes) {
            this.path = path;
            this.bytes = bytes;
        }

        @Override
        public long size() {
            return bytes.length;
        }

        @Override
        public int bestRead() {
            return 16 << 10; // less than a segment, so that the window moves
        }

        @Override
        public int worthReading() {
            return 512;
        }

        @Override
        public int read(long position, byte[] into, int at, int length) throws IOException {
            int count = (int) Math.max(0, Math.min(length, bytes.length - position));
            for (long page = position / PAGE; page * PAGE < position + count; page++) {
                if (unreadable.getOrDefault(path, Set.of()).contains(page)) {
                    throw new IOException(words);
                }
            }
            System.arraycopy(bytes, (int) position, into, at, count);
            read.merge(path, (long) count, Long::sum);
            return count;
        }

        @Override
        public void close() {}
    }
}
