package liftlog.scan;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import liftlog.records.Failure;

/** The names of the columns of a read, and the option that selects them. */
public final class Columns {
    public static final String OFFSET = "offset";
    public static final String TIMESTAMP = "timestamp";
    public static final String SUBJECT = "subject";
    public static final String KEY = "key";
    public static final String HEADERS = "headers";
    public static final String VALUE = "value";
    public static final String STREAM = "stream";

    public static final List<String> ALL =
            List.of(OFFSET, TIMESTAMP, SUBJECT, KEY, HEADERS, VALUE, STREAM);
    private static final List<String> DEFAULT = List.of(OFFSET, TIMESTAMP, SUBJECT, KEY, VALUE);
    private static final List<String> WITH_HEADERS =
            List.of(OFFSET, TIMESTAMP, SUBJECT, KEY, HEADERS, VALUE);

    private Columns() {}

    /**
     * Returns the columns that the options {@code columns} (may be null) and {@code includeHeaders}
     * select.
     */
    static List<String> parse(String text, boolean includeHeaders) {
        if (text == null) {
            return includeHeaders ? WITH_HEADERS : DEFAULT;
        }
        List<String> names = new ArrayList<>();
        for (String part : text.split(",", -1)) {
            String name = part.strip().toLowerCase(Locale.ROOT);
            if (!ALL.contains(name)) {
                throw Failure.invalid("columns='" + text + "': there is no column '" + name + "'"
                        + didYouMean(name, ALL),
                        "choose from " + String.join(", ", ALL) + ", separated by commas");
            }
            names.add(name);
        }
        if (new HashSet<>(names).size() < names.size()) {
            throw Failure.invalid("columns='" + text + "' names a column twice");
        }
        if (includeHeaders && !names.contains(HEADERS)) {
            names.add(HEADERS);
        }
        return List.copyOf(names);
    }

    /**
     * Returns {@code ; did you mean 'subject'?}, or an empty string if no known name is similar.
     */
    static String didYouMean(String name, Collection<String> known) {
        String best = null;
        double most = 0.6;
        for (String one : known) {
            double ratio = likeness(name.toLowerCase(Locale.ROOT), one.toLowerCase(Locale.ROOT));
            if (ratio >= most) {
                best = one;
                most = ratio;
            }
        }
        return best == null ? "" : "; did you mean '" + best + "'?";
    }

    /** Returns the share of characters that occur in both texts, in the same order. */
    private static double likeness(String a, String b) {
        int[][] common = new int[a.length() + 1][b.length() + 1];
        for (int i = 1; i <= a.length(); i++) {
            for (int j = 1; j <= b.length(); j++) {
                common[i][j] = a.charAt(i - 1) == b.charAt(j - 1)
                        ? common[i - 1][j - 1] + 1
                        : Math.max(common[i - 1][j], common[i][j - 1]);
            }
        }
        return 2.0 * common[a.length()][b.length()] / Math.max(1, a.length() + b.length());
    }
}
