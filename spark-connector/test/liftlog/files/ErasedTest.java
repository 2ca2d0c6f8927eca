package liftlog.files;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.List;
import java.util.Set;
import liftlog.Golden;
import liftlog.MemoryFiles;
import liftlog.files.Streams.Read;
import liftlog.files.Streams.Row;
import liftlog.records.Failure;
import liftlog.records.RecordBatch;
import liftlog.scan.BatchSource;
import liftlog.scan.Columns;
import liftlog.scan.Extent;
import liftlog.scan.Losses;
import liftlog.scan.ScanRange;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Streams with erased records; ReadingTest and DamageTest read them, too. */
class ErasedTest {
    private static final long BORDER = 1 << 24; // between two chunks of offsets

    private static String path(String stream, int number) {
        Manifest manifest = Manifest.read(Golden.stream(stream), Golden.DIRECTORY);
        return Golden.DIRECTORY + "/" + manifest.erased().get(number).file();
    }

    private static List<Long> offsets(Read read) {
        return read.rows().stream().map(Row::offset).toList();
    }

    @Test
    void aroundTheBorderOfTwoChunks() {
        List<Long> left = Streams.left("far").stream().map(Row::offset).toList();
        for (long from = BORDER - 21; from < BORDER + 16; from++) {
            for (long to = from + 1; to <= BORDER + 16; to++) {
                long first = from;
                long end = to;
                assertEquals(left.stream().filter(one -> first <= one && one < end).toList(),
                        offsets(new Read(Golden.stream("far")).pieces(from, to)));
            }
        }
        assertTrue(left.containsAll(List.of(1L, BORDER - 5, BORDER + 6, BORDER + 15)));
        assertTrue(left.stream().noneMatch(one -> BORDER - 4 <= one && one < BORDER + 6));
    }

    /**
     * It is unknown which records of the range are erased, so failOnDataLoss=false shows no record
     * of it either.
     */
    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void aRangeOfWhichNothingIsKnown(boolean fail) {
        MemoryFiles files = Golden.stream("erased");
        files.remove(path("erased", 1));
        Losses losses = new Losses("orders", fail);
        for (long[] range : new long[][] {{1, 345}, {151, 152}, {200, 201}, {341, 342}}) {
            Read read = new Read(files).losses(losses).pieces(range);
            Failure error = assertThrows(Failure.class, read::rows);
            assertEquals(Failure.CORRUPT_METADATA, error.name());
            assertTrue(error.reason().endsWith("of the records [151, 342)"), error.reason());
        }
        List<Row> all = Streams.left("erased");
        assertEquals(Streams.some(all, Streams.ALL, row -> row.offset() < 151),
                new Read(files).losses(losses).pieces(1, 151).rows());
        assertEquals(List.of(), new Read(files).losses(losses).pieces(342, 345).rows());
        assertEquals(0, losses.skipped());
        assertThrows(Failure.class, () -> new Read(files).columns(Set.of(Columns.OFFSET)).rows());
        assertThrows(Failure.class, () -> new Read(files).ofSubject("orders.eu").rows());
    }

    @Test
    void onlyTheFilesOfTheRangeAreReadAndTheSecondHalfWhenItIsNeeded() {
        MemoryFiles files = Golden.stream("erased");
        new Read(files).pieces(150, 151).rows();
        assertTrue(files.bytesRead(path("erased", 0)) > 0);
        assertEquals(0, files.bytesRead(path("erased", 1)));
        assertEquals(0, files.bytesRead(path("erased", 2)));
        new Read(files).pieces(340, 345).rows();
        int half = files.get(path("erased", 1)).length - 4096;
        assertEquals(half, files.bytesRead(path("erased", 1)));
        files.breakPage(path("erased", 1), 0, "Input/output error");
        assertEquals(Streams.left("erased"), new Read(files).rows());
        assertEquals(2 * half, files.bytesRead(path("erased", 1)));
    }

    @Test
    void anotherErrorOfTheDiskIsNoDamage() {
        MemoryFiles files = Golden.stream("erased");
        files.breakPage(path("erased", 0), 0, "Stale file handle");
        Failure error = assertThrows(Failure.class, () -> new Read(files).rows());
        assertEquals(Failure.STORAGE_ERROR, error.name());
    }

    /**
     * A daemon writes the manifest, and then removes the files that the manifest no longer lists.
     */
    @Test
    void filesThatADaemonReplacesMeanwhile() {
        MemoryFiles files = Golden.stream("erased");
        String replaced = path("erased", 0);
        FileStore store = new FileStore() {
            @Override
            public Opened open(String path) throws IOException {
                if (path.equals(replaced)) {
                    String manifest = Golden.DIRECTORY + "/" + Manifest.NAME;
                    files.put(manifest, Golden.stream("sketched").get(manifest));
                    throw new FileNotFoundException(path);
                }
                return files.open(path);
            }

            @Override
            public boolean isFile(String path) {
                return files.isFile(path);
            }

            @Override
            public boolean isDirectory(String path) {
                return files.isDirectory(path);
            }
        };
        assertEquals(Streams.left("sketched"), new Read(store).rows());
    }

    /** The number that the metrics of a task contain. */
    @ParameterizedTest
    @ValueSource(strings = {"sketched", "erased", "far"})
    void recordsThatAreCounted(String stream) {
        FileTransport transport = new Read(Golden.stream(stream)).transport();
        var state = transport.state();
        long first = state.logStart() + 1;
        ScanRange range = transport.held(List.of(new ScanRange("orders", state.identity(),
                state.leaderEpoch(), first, state.end(),
                List.of(new Extent(first, state.end(), 0)), ScanRange.Guard.NONE))).get(0);
        long count = 0;
        try (RecordBatch batch = new RecordBatch(); BatchSource source = transport.batches(
                range, Set.of(Columns.OFFSET), new Losses("orders", true), true, false)) {
            while (source.next(batch)) {
                count += batch.shownCount();
            }
        }
        assertEquals(Streams.left(stream).stream().filter(row -> row.offset() >= first).count(),
                count);
    }

    /** Loads the classes of this connector again, without Roaring. */
    private static final class WithoutRoaring extends ClassLoader {
        WithoutRoaring() {
            super(ErasedTest.class.getClassLoader());
        }

        @Override
        protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
            if (name.startsWith("org.roaringbitmap.")) {
                throw new ClassNotFoundException(name);
            }
            if (!name.startsWith("liftlog.")) {
                return super.loadClass(name, resolve);
            }
            Class<?> loaded = findLoadedClass(name);
            return loaded == null ? defined(name) : loaded;
        }

        private Class<?> defined(String name) throws ClassNotFoundException {
            String file = name.replace('.', '/') + ".class";
            try (InputStream raw = getResourceAsStream(file)) {
                byte[] bytes = raw.readAllBytes();
                return defineClass(name, bytes, 0, bytes.length);
            } catch (IOException error) {
                throw new ClassNotFoundException(name, error);
            }
        }

        int count(String stream) throws ReflectiveOperationException {
            Method method = loadClass(ErasedTest.class.getName(), true)
                    .getDeclaredMethod("count", String.class);
            method.setAccessible(true);
            return (int) method.invoke(null, stream);
        }
    }

    static int count(String stream) {
        return new Read(Golden.stream(stream)).rows().size();
    }

    @Test
    void roaringIsLoadedForStreamsWithErasedRecordsOnly() throws ReflectiveOperationException {
        assertEquals(count("sketched"), new WithoutRoaring().count("sketched"));
        assertEquals(count("data"), new WithoutRoaring().count("data"));
        InvocationTargetException error = assertThrows(InvocationTargetException.class,
                () -> new WithoutRoaring().count("erased"));
        assertInstanceOf(NoClassDefFoundError.class, error.getCause());
    }
}
