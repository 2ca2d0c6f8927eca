package liftlog.scan;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeSet;

/** The approximate size of the records [first, next). */
public record Extent(long first, long next, long sizeBytes) implements Serializable {
    /**
     * Joins two ascending lists of extents, for records that match either of two conditions. A
     * range of the result has the size 0 only if both lists have the size 0 for it.
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

    /**
     * Returns the size of [from, to), which contains no border of the list; 1 if the size is not
     * known.
     */
    private static long part(List<Extent> list, int at, long from, long to) {
        if (at == list.size() || list.get(at).first > from) {
            return 1;
        }
        Extent one = list.get(at);
        double share = (double) (to - from) / (one.next - one.first);
        return one.sizeBytes == 0 ? 0 : Math.max(1, Math.round(share * one.sizeBytes));
    }
}
