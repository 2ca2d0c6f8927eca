package liftlog.scan;

import java.util.Arrays;
import liftlog.records.Bytes;
import liftlog.records.RecordBatch;

/**
 * The offset of the newest record of each key in a range, for the option {@code compact}. Keys are
 * compared byte by byte. The memory for a key is its bytes plus about 40 bytes.
 */
public final class NewestKeys {
    private static final int FREE = -1;

    private int[] slots = new int[1 << 12]; // hash table of the numbers of keys
    private int[] hashes = new int[1 << 11];
    private int[] starts = new int[1 << 11]; // start of each key in its chunk
    private int[] chunks = new int[1 << 11];
    private int[] sizes = new int[1 << 11];
    private long[] offsets = new long[1 << 11];
    private int count;
    private byte[][] bytes = {new byte[1 << 16]};
    private int lastChunk;
    private int used;

    public NewestKeys() {
        Arrays.fill(slots, FREE);
    }

    /**
     * Notes the records that become rows. Call it for the batches in the order of their offsets.
     */
    public void note(RecordBatch batch, Rows rows) {
        if (!batch.keys.isPresent()) {
            return;
        }
        batch.check(batch.keys);
        for (int row = 0; row < rows.count(); row++) {
            int record = rows.record(row);
            if (!batch.isNull(batch.keys, record)) {
                int at = batch.start(batch.keys, record);
                int size = batch.size(batch.keys, record);
                int number = number(batch.bytes(), at, size); // may replace `offsets`
                offsets[number] = batch.offset(record);
            }
        }
    }

    /** Returns true if the record is the newest of its key, or has no key. */
    boolean holds(RecordBatch batch, int record) {
        if (!batch.keys.isPresent() || batch.isNull(batch.keys, record)) {
            return true;
        }
        int at = batch.start(batch.keys, record);
        int size = batch.size(batch.keys, record);
        int hash = Bytes.hash(batch.bytes(), at, size);
        int number = slots[slot(batch.bytes(), at, size, hash)];
        return number == FREE || offsets[number] <= batch.offset(record);
    }

    private int number(byte[] from, int at, int size) {
        int hash = Bytes.hash(from, at, size);
        int slot = slot(from, at, size, hash);
        if (slots[slot] != FREE) {
            return slots[slot];
        }
        if (2 * count >= slots.length) {
            grow();
            slot = slot(from, at, size, hash);
        }
        if (count == offsets.length) {
            int more = count + (count >> 1);
            hashes = Arrays.copyOf(hashes, more);
            starts = Arrays.copyOf(starts, more);
            chunks = Arrays.copyOf(chunks, more);
            sizes = Arrays.copyOf(sizes, more);
            offsets = Arrays.copyOf(offsets, more);
        }
        keep(from, at, size);
        hashes[count] = hash;
        sizes[count] = size;
        slots[slot] = count;
        return count++;
    }

    /** Returns the slot of the key, or the free slot for it. */
    private int slot(byte[] from, int at, int size, int hash) {
        int mask = slots.length - 1;
        int slot = hash & mask;
        while (slots[slot] != FREE) {
            int number = slots[slot];
            if (hashes[number] == hash && sizes[number] == size
                    && Arrays.equals(from, at, at + size,
                            bytes[chunks[number]], starts[number], starts[number] + size)) {
                return slot;
            }
            slot = slot + 1 & mask;
        }
        return slot;
    }

    private void keep(byte[] from, int at, int size) {
        if (bytes[lastChunk].length - used < size) {
            bytes = Arrays.copyOf(bytes, bytes.length + 1);
            bytes[++lastChunk] = new byte[Math.max(size, 1 << 20)];
            used = 0;
        }
        System.arraycopy(from, at, bytes[lastChunk], used, size);
        chunks[count] = lastChunk;
        starts[count] = used;
        used += size;
    }

    private void grow() {
        slots = new int[2 * slots.length];
        Arrays.fill(slots, FREE);
        int mask = slots.length - 1;
        for (int number = 0; number < count; number++) {
            int slot = hashes[number] & mask;
            while (slots[slot] != FREE) {
                slot = slot + 1 & mask;
            }
            slots[slot] = number;
        }
    }
}
