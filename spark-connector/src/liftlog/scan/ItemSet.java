package liftlog.scan;

import java.util.Arrays;
import java.util.List;
import liftlog.records.Bytes;

/** A set of subjects or keys, made from {@link Items}. */
final class ItemSet {
    private final byte[][] slots; // a hash table, at most half full
    private final List<byte[]> prefixes;
    private final long sizes; // bit n: an item has n bytes, modulo 64

    ItemSet(Items items) {
        prefixes = items.prefixes();
        slots = new byte[Integer.highestOneBit(2 * items.whole().size() + 1) * 2][];
        long sizes = 0;
        for (byte[] item : items.whole()) {
            slots[slot(item, 0, item.length)] = item;
            sizes |= 1L << item.length;
        }
        this.sizes = sizes;
    }

    boolean holds(byte[] bytes, int at, int size) {
        if ((sizes >>> size & 1) != 0 && slots[slot(bytes, at, size)] != null) {
            return true;
        }
        for (byte[] prefix : prefixes) {
            if (size >= prefix.length
                    && Arrays.equals(bytes, at, at + prefix.length, prefix, 0, prefix.length)) {
                return true;
            }
        }
        return false;
    }

    /** Returns the slot of the item, or the free slot for it. */
    private int slot(byte[] bytes, int at, int size) {
        int mask = slots.length - 1;
        int slot = Bytes.hash(bytes, at, size) & mask;
        while (slots[slot] != null
                && !Arrays.equals(bytes, at, at + size, slots[slot], 0, slots[slot].length)) {
            slot = slot + 1 & mask;
        }
        return slot;
    }
}
