package liftlog.records;

import com.github.luben.zstd.Zstd;
import com.github.luben.zstd.ZstdDecompressCtx;
import com.github.luben.zstd.ZstdException;
import net.jpountz.lz4.LZ4Exception;
import net.jpountz.lz4.LZ4Factory;
import net.jpountz.lz4.LZ4SafeDecompressor;

/**
 * Decompresses the bodies of batches. A compressed body consists of the length before compression
 * (u32), the compressed length (u32) and the compressed bytes. Not thread-safe.
 */
final class Codecs implements AutoCloseable {
    private static final int LZ4 = 1;
    private static final int SIZES = 8;
    private static final long MOST_BYTES = 1L << 27;
    private static final int LZ4_MOST_RATIO = 255;
    private static final int SPARE = 64;

    private LZ4SafeDecompressor lz4;
    private ZstdDecompressCtx zstd;
    private byte[] columns = new byte[0];

    /**
     * Decompresses the columns of the checked batch at {@code at}. They begin at index 0 of the
     * result; {@code length} returns their size. The next call overwrites them.
     */
    byte[] inflate(byte[] bytes, int at, BatchHeader header) throws CorruptBatch {
        int body = at + BatchHeader.SIZE;
        long packed = header.length() - BatchHeader.SIZE - SIZES;
        if (packed < 0) {
            throw new CorruptBatch(header.length() + " bytes are too few for a compressed batch");
        }
        long size = Bytes.u32(bytes, body);
        long compressed = Bytes.u32(bytes, body + 4);
        if (size > MOST_BYTES || (size & 7) != 0) {
            throw new CorruptBatch("impossible length " + size + " of the body before compression");
        }
        if (Bytes.padded(compressed) != packed) {
            throw new CorruptBatch("the compressed body is " + compressed + " bytes long, the batch "
                    + header.length());
        }
        boolean isLz4 = header.codec() == LZ4;
        if (isLz4 && size > LZ4_MOST_RATIO * compressed) {
            throw unreadable(header, compressed + " bytes never become " + size);
        }
        int data = body + SIZES;
        if (!isLz4 && Zstd.getFrameContentSize(bytes, data, (int) compressed) != size) {
            throw unreadable(header, "the frame is for another number of bytes");
        }
        if (columns.length < size) {
            columns = new byte[(int) size + SPARE];
        }
        int made = isLz4 ? unpackLz4(bytes, data, (int) compressed, (int) size, header)
                : unpackZstd(bytes, data, (int) compressed, (int) size, header);
        if (made != size) {
            throw unreadable(header, "it becomes " + made + " bytes and not " + size);
        }
        return columns;
    }

    /** Returns the size of the decompressed columns of this batch. */
    static int length(byte[] bytes, int at) {
        return Bytes.i32(bytes, at + BatchHeader.SIZE);
    }

    private int unpackLz4(byte[] bytes, int at, int length, int size, BatchHeader header)
            throws CorruptBatch {
        if (lz4 == null) {
            lz4 = LZ4Factory.fastestInstance().safeDecompressor();
        }
        try {
            return lz4.decompress(bytes, at, length, columns, 0, size);
        } catch (LZ4Exception error) {
            throw unreadable(header, error.getMessage());
        }
    }

    private int unpackZstd(byte[] bytes, int at, int length, int size, BatchHeader header)
            throws CorruptBatch {
        if (zstd == null) {
            zstd = new ZstdDecompressCtx();
        }
        try {
            return zstd.decompressByteArray(columns, 0, size, bytes, at, length);
        } catch (ZstdException error) {
            throw unreadable(header, error.getMessage());
        }
    }

    private static CorruptBatch unreadable(BatchHeader header, String why) {
        String name = header.codec() == LZ4 ? "lz4" : "zstd";
        return new CorruptBatch("the " + name + " body cannot be decompressed: " + why);
    }

    @Override
    public void close() {
        if (zstd != null) {
            zstd.close();
        }
    }
}
