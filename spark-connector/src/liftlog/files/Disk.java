package liftlog.files;

import java.io.IOException;
import java.util.Arrays;

/**
 * Reads a file that may have unreadable pages. Such a page counts as zeros, which never match a
 * checksum. Other errors do not show that the bytes are damaged, and are thrown.
 */
final class Disk {
    private static final int PAGE = 4096;
    private static final String SECTOR_ERROR = "Input/output error";

    private Disk() {}

    static boolean isUnreadable(IOException error) {
        return SECTOR_ERROR.equals(error.getMessage());
    }

    /** Reads {@code length} bytes at {@code position}; fewer only at the end of the file. */
    static int read(FileStore.Opened file, long position, byte[] into, int at, int length)
            throws IOException {
        try {
            return file.read(position, into, at, length);
        } catch (IOException error) {
            if (!isUnreadable(error)) {
                throw error;
            }
        }
        int wanted = (int) Math.max(0, Math.min(length, file.size() - position));
        int done = 0;
        while (done < wanted) {
            int piece = (int) Math.min(PAGE - (position + done) % PAGE, wanted - done);
            try {
                file.read(position + done, into, at + done, piece);
            } catch (IOException error) {
                if (!isUnreadable(error)) {
                    throw error;
                }
                Arrays.fill(into, at + done, at + done + piece, (byte) 0);
            }
            done += piece;
        }
        return wanted;
    }
}
