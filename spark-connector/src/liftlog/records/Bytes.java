package liftlog.records;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.zip.CRC32C;

/** Little-endian numbers in byte arrays, and their checksum. Indexes are checked by the JVM. */
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

    /** The CRC-32C of these bytes as the 32 bits that are stored. */
    public static int crc32c(byte[] bytes, int at, int length) {
        CRC32C crc = new CRC32C();
        crc.update(bytes, at, length);
        return (int) crc.getValue();
    }

    /** The next multiple of 8. */
    public static long padded(long length) {
        return length + 7 & ~7L;
    }

    private static VarHandle view(Class<?> kind) {
        return MethodHandles.byteArrayViewVarHandle(kind, ByteOrder.LITTLE_ENDIAN);
    }
}
