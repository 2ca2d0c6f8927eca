package liftlog;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.Set;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;
import org.junit.jupiter.api.DynamicTest;

/**
 * The golden files of the storage format. The tests in Python use the same files:
 * tests/support/disks/golden_log.py and golden_reads.py.
 */
public final class Golden {
    /** The directory of the streams in a {@link MemoryFiles}. */
    public static final String DIRECTORY = "/logs/orders";

    private static final Path ROOT = Path.of(System.getProperty("golden"));

    private static final Set<String> WHOLE = Set.of("sketched", "erased", "far");

    private Golden() {}

    public static JsonNode json(String name) {
        return read(() -> new ObjectMapper().readTree(ROOT.resolve(name + ".json").toFile()));
    }

    /** Returns a test for each case of a file, with the name of the case. */
    public static Stream<DynamicTest> cases(String name, Check<JsonNode> check) {
        return StreamSupport.stream(json(name).spliterator(), false).map(one -> {
            String title = (one.has("name") ? one.get("name") : one.get("codec")).asText();
            return DynamicTest.dynamicTest(title, () -> check.accept(one));
        });
    }

    /** Returns the bytes that are written as {@code {"hex": ...}}; null for null. */
    public static byte[] bytes(JsonNode of) {
        return of == null || of.isNull() ? null : HexFormat.of().parseHex(of.get("hex").asText());
    }

    public static String hex(byte[] bytes) {
        return bytes == null ? null : HexFormat.of().formatHex(bytes);
    }

    /**
     * Returns the files of a stream below {@link #DIRECTORY}. For older forms of {@code data}, it
     * has only the files that differ from it.
     */
    public static MemoryFiles stream(String over) {
        MemoryFiles files = new MemoryFiles();
        if (!WHOLE.contains(over)) {
            add(files, "data");
        }
        add(files, over);
        return files;
    }

    private static void add(MemoryFiles files, String name) {
        Path place = ROOT.resolve(name).resolve("streams/orders");
        read(() -> {
            try (Stream<Path> paths = Files.list(place)) {
                for (Path one : paths.toList()) {
                    files.put(DIRECTORY + "/" + one.getFileName(), Files.readAllBytes(one));
                }
            }
            return null;
        });
    }

    /** A check that may fail in any way. */
    @FunctionalInterface
    public interface Check<T> {
        void accept(T of) throws Throwable;
    }

    @FunctionalInterface
    private interface Reading<T> {
        T get() throws IOException;
    }

    private static <T> T read(Reading<T> what) {
        try {
            return what.get();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
