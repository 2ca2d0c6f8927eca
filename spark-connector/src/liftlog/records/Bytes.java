package liftlog.records;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.zip.CRC32C;

/**
 * Little-endian numbers in byte arrays, and checksums of such arrays. The JVM checks the indexes.
 */
public final class Bytes {
    private static final VarHandle SHORT = view(short[].class);
    private static final VarHandle INT = view(int[].class);
    private static final VarHandle LONG = view(long[].class);

    private Bytes() {}

    public static int u16(byte[] bytes, int at) {
        return (short) SHORT.get(bytes, at) & 0xFFFF;
    }

    public static int i32(byte[] bytes, int at) {
        return (int) INT.get(bytes, at);
    }

    public static long u32(byte[] bytes, int at) {
        return (int) INT.get(bytes, at) & 0xFFFF_FFFFL;
    }

    public static long i64(byte[] bytes, int at) {
        return (long) LONG.get(bytes, at);
    }

    public static void putInt(byte[] bytes, int at, int value) {
        INT.set(bytes, at, value);
    }

    /** Returns the CRC-32C of these bytes as the 32 bits that are stored. */
    public static int crc32c(byte[] bytes, int at, int length) {
        CRC32C crc = new CRC32C();
        crc.update(bytes, at, length);
        return (int) crc.getValue();
    }

    /** Returns {@code length} rounded up to a multiple of 8. */
    public static long padded(long length) {
        return length + 7 & ~7L;
    }

    private static VarHandle view(Class<?> kind) {
        return MethodHandles.byteArrayViewVarHandle(kind, ByteOrder.LITTLE_ENDIAN);
    }

    /** A hash for hash tables. */
    public static int hash(byte[] from, int at, int size) {
        long hash = size * 0x9E3779B97F4A7C15L;
        int i = 0;
        for (; i + 8 <= size; i += 8) {
            hash = mixed(hash ^ i64(from, at + i));
        }
        for (; i < size; i++) {
            hash = (hash ^ from[at + i]) * 0x100000001B3L;
        }
        hash = mixed(hash);
        return (int) (hash ^ hash >>> 32);
    }

    private static long mixed(long value) {
        long hash = (value ^ value >>> 32) * 0xD6E8FEB86659FD93L;
        return hash ^ hash >>> 29;
    }
}
