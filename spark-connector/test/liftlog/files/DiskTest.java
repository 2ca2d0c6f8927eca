package liftlog.files;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Random;
import liftlog.MemoryFiles;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Reads of pages, of the window, and of files of this host. */
class DiskTest {
    private static final int PAGE = 4096;

    private final byte[] content = new byte[5 * PAGE + 100];
    private final MemoryFiles files = new MemoryFiles();

    DiskTest() {
        new Random(1).nextBytes(content);
        files.put("/f", content);
    }

    @Test
    void pagesThatCannotBeReadAreZeros() throws IOException {
        files.breakPage("/f", 1, "Input/output error");
        files.breakPage("/f", 4, "Input/output error");
        byte[] expected = content.clone();
        Arrays.fill(expected, PAGE, 2 * PAGE, (byte) 0);
        Arrays.fill(expected, 4 * PAGE, 5 * PAGE, (byte) 0);
        try (FileStore.Opened file = files.open("/f")) {
            for (int from : new int[] {0, 1, PAGE - 1, PAGE, 2 * PAGE, 4 * PAGE + 7, 5 * PAGE}) {
                for (int length : new int[] {1, 7, PAGE, PAGE + 1, 3 * PAGE, content.length}) {
                    byte[] into = new byte[length + 3];
                    Arrays.fill(into, (byte) 7);
                    int count = Disk.read(file, from, into, 3, length);
                    assertEquals(Math.min(length, content.length - from), count);
                    assertArrayEquals(Arrays.copyOfRange(expected, from, from + count),
                            Arrays.copyOfRange(into, 3, 3 + count));
                    assertEquals(7, into[2]);
                }
            }
            assertEquals(0, Disk.read(file, content.length, new byte[8], 0, 8));
        }
    }

    @Test
    void otherErrorsAreThrown() throws IOException {
        files.breakPage("/f", 1, "No such device");
        try (FileStore.Opened file = files.open("/f")) {
            assertEquals(PAGE, Disk.read(file, 0, new byte[PAGE], 0, PAGE));
            byte[] more = new byte[PAGE + 1];
            assertThrows(IOException.class, () -> Disk.read(file, 0, more, 0, more.length));
        }
    }

    @Test
    void aWindowShowsEveryPlace() throws IOException {
        Random random = new Random(2);
        try (FileStore.Opened file = files.open("/f")) {
            Window window = new Window();
            window.open(file);
            for (int i = 0; i < 2000; i++) {
                int position = random.nextInt(content.length);
                int wanted = 1 + random.nextInt(random.nextBoolean() ? 64 : content.length);
                int end = position + random.nextInt(content.length + 100 - position);
                int most = random.nextInt(content.length);
                int count = window.view(position, wanted, most, end);
                int stop = Math.min(end, content.length);
                assertEquals(Math.max(0, Math.min(wanted, stop - position)), count);
                int at = window.at(position);
                assertArrayEquals(Arrays.copyOfRange(content, position, position + count),
                        Arrays.copyOfRange(window.bytes(), at, at + count));
            }
        }
    }

    @Test
    void filesOfThisHost(@TempDir Path place) throws IOException {
        Path path = place.resolve("f");
        Files.write(path, content);
        FileStore store = new FileStore.Local();
        assertArrayEquals(content, store.readAll(path.toString()));
        try (FileStore.Opened file = store.open(path.toString())) {
            assertEquals(content.length, file.size());
            byte[] into = new byte[200];
            assertEquals(100, file.read(5 * PAGE, into, 50, 150));
            assertArrayEquals(Arrays.copyOfRange(content, 5 * PAGE, content.length),
                    Arrays.copyOfRange(into, 50, 150));
            Files.delete(path);
            assertEquals(200, file.read(7, into, 0, 200));
        }
        assertThrows(FileNotFoundException.class, () -> store.open(path.toString()));
        assertEquals(false, store.isFile(path.toString()));
        assertEquals(true, store.isDirectory(place.toString()));
    }
}
