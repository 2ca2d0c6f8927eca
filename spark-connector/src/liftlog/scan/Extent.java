package liftlog.scan;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeSet;

/** The records [first, next) take up about so many bytes. */
public record Extent(long first, long next, long sizeBytes) implements Serializable {
    /**
     * Two lists of extents, which ascend, as one: of size 0 is only what both cover and know to hold
     * nothing.
     */
    public static List<Extent> either(List<Extent> some, List<Extent> others) {
        TreeSet<Long> borders = new TreeSet<>();
        for (List<Extent> list : List.of(some, others)) {
            for (Extent one : list) {
                borders.add(one.first);
                borders.add(one.next);
            }
        }
        List<Extent> found = new ArrayList<>();
        int i = 0;
        int j = 0;
        Long before = null;
        for (Long border : borders) {
            if (before != null) {
                i = following(some, i, before);
                j = following(others, j, before);
                long size = Math.max(part(some, i, before, border), part(others, j, before, border));
                found.add(new Extent(before, border, size));
            }
            before = border;
        }
        return found;
    }

    private static int following(List<Extent> list, int at, long offset) {
        int i = at;
        while (i < list.size() && list.get(i).next <= offset) {
            i++;
        }
        return i;
    }

    /** The size of [from, to), which no border divides; 1 if it is not known. */
    private static long part(List<Extent> list, int at, long from, long to) {
        if (at == list.size() || list.get(at).first > from) {
            return 1;
        }
        Extent one = list.get(at);
        double share = (double) (to - from) / (one.next - one.first);
        return one.sizeBytes == 0 ? 0 : Math.max(1, Math.round(share * one.sizeBytes));
    }
}
