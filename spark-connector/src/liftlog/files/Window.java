package liftlog.files;

import java.io.IOException;

/**
 * Some bytes of a file. The byte at {@code position} in the file has the index {@code position -
 * start}. The buffer is used again for the next file. Bytes stay at the same index until the next
 * call of {@code view}.
 */
final class Window {
    private FileStore.Opened file;
    private byte[] bytes = {};
    private long start;
    private int length; // number of bytes read without a gap

    /** Reads another file from now on. */
    void open(FileStore.Opened other) {
        file = other;
        start = 0;
        length = 0;
        if (bytes.length < file.bestRead()) {
            bytes = new byte[file.bestRead()];
        }
    }

    FileStore.Opened file() {
        return file;
    }

    byte[] bytes() {
        return bytes;
    }

    /** Returns the index, in {@code bytes}, of a position in the file. */
    int at(long position) {
        return (int) (position - start);
    }

    /** Returns the number of bytes that the buffer can hold without growing. */
    int size() {
        return bytes.length;
    }

    /**
     * Makes {@code wanted} bytes from a position on readable, and returns how many of them are
     * readable: fewer at {@code end} and at the end of the file. If it has to read, it reads up to
     * {@code most} bytes.
     */
    int view(long position, int wanted, int most, long end) throws IOException {
        int needed = (int) Math.min(wanted, end - position);
        if (!holds(position, needed)) {
            int kept = moveTo(position, needed);
            int room = Math.min(Math.max(most, needed), bytes.length);
            int until = (int) Math.max(kept, Math.min(room, end - position));
            length = kept + Disk.read(file, position + kept, bytes, kept, until - kept);
        }
        return Math.min(needed, length - at(position));
    }

    /** Makes room for {@code wanted} bytes from a position on, which is in the window. */
    void makeRoom(long position, int wanted) {
        if (at(position) + wanted > bytes.length) {
            length = moveTo(position, wanted);
        }
    }

    /**
     * Reads these bytes to their places, unless they were read already. There must be room for
     * them.
     */
    boolean fill(long position, int wanted) throws IOException {
        return holds(position, wanted)
                || Disk.read(file, position, bytes, at(position), wanted) == wanted;
    }

    boolean holds(long position, int wanted) {
        return position >= start && position - start + wanted <= length;
    }

    /**
     * Moves the start of the window to a position, with room for {@code wanted} bytes. Returns how
     * many of them are already read.
     */
    private int moveTo(long position, int wanted) {
        long inside = position - start;
        int kept = inside >= 0 && inside < length ? length - (int) inside : 0;
        byte[] from = bytes;
        if (wanted > bytes.length) {
            bytes = new byte[wanted + wanted / 4];
        }
        System.arraycopy(from, kept == 0 ? 0 : (int) inside, bytes, 0, kept);
        start = position;
        return kept;
    }
}
