package liftlog.files;

import java.io.IOException;

/**
 * Some bytes of a file, each at its place after {@code start}. The buffer is used again for the next
 * file. What was shown stays where it is until the next {@code view}.
 */
final class Window {
    private FileStore.Opened file;
    private byte[] bytes = {};
    private long start;
    private int length; // so many bytes were read without a gap

    /** Looks at another file from now on. */
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

    /** The index of a position in {@code bytes}. */
    int at(long position) {
        return (int) (position - start);
    }

    /** How many bytes the buffer takes without growing. */
    int size() {
        return bytes.length;
    }

    /**
     * Makes so many bytes from a position on readable, unless they are, and says how many they are:
     * fewer before {@code end} and at the end of the file. If it has to read, it reads up to {@code
     * most}.
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

    /** Room for so many bytes from a position on, which is in the window. */
    void makeRoom(long position, int wanted) {
        if (at(position) + wanted > bytes.length) {
            length = moveTo(position, wanted);
        }
    }

    /** Reads these bytes to their place, for which there is room, unless they are there. */
    boolean fill(long position, int wanted) throws IOException {
        return holds(position, wanted)
                || Disk.read(file, position, bytes, at(position), wanted) == wanted;
    }

    boolean holds(long position, int wanted) {
        return position >= start && position - start + wanted <= length;
    }

    /** Begins at a position, with room for so many bytes; says how many of them are there. */
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
