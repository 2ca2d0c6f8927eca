package liftlog.scan;

import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/**
 * The subjects or keys that the conditions of a query allow: each of the {@code whole} items, and
 * each item that begins with one of the {@code prefixes}.
 */
public record Items(List<byte[]> whole, List<byte[]> prefixes) implements Serializable {
    public static Items of(List<byte[]> whole) {
        return new Items(whole, List.of());
    }

    public static Items of(String one) {
        return of(List.of(bytes(one)));
    }

    public static Items beginningWith(String prefix) {
        return new Items(List.of(), List.of(bytes(prefix)));
    }

    /** Returns the only allowed item; null if several are allowed. */
    public byte[] only() {
        return prefixes.isEmpty() && whole.size() == 1 ? whole.get(0) : null;
    }

    /** Returns the items that one of the two allows. Null allows everything. */
    static Items either(Items one, Items other) {
        if (one == null || other == null) {
            return null;
        }
        return new Items(joined(one.whole, other.whole), joined(one.prefixes, other.prefixes));
    }

    /**
     * Returns one of two conditions that must both hold: the condition that probably excludes more.
     * Returns null if both are null.
     */
    static Items both(Items one, Items other) {
        if (one == null || other == null) {
            return one == null ? other : one;
        }
        boolean isFirst = one.prefixes.size() == other.prefixes.size()
                ? one.whole.size() <= other.whole.size()
                : one.prefixes.size() < other.prefixes.size();
        return isFirst ? one : other;
    }

    private static List<byte[]> joined(List<byte[]> some, List<byte[]> more) {
        List<byte[]> all = new ArrayList<>(some);
        all.addAll(more);
        return List.copyOf(all);
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
